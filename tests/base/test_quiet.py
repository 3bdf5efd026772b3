"""A machine without a GPU starts without a word on stderr; one with a GPU is left alone."""

import os
import subprocess
import sys

import pytest

from jzero.base import quiet

START = "from jzero.base.quiet import quiet_start; quiet_start(); import jax; jax.devices(); "


def run_python(code):
    ours = ("JAX_PLATFORMS", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "TF_CPP_MIN_LOG_LEVEL")
    environment = {key: value for key, value in os.environ.items() if key not in ours}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)


@pytest.mark.parametrize("then", ["", "from jzero.plan.compiled.topology import gpu_mesh; gpu_mesh('h200', 8)"])
def test_no_driver_messages(then):
    done = run_python(START + then)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


def test_jax_first_is_quiet_from_the_import_of_jzero_on():
    """What `import jax` prints by itself is past; starting it, and the plugin, print nothing more."""
    done = run_python(
        "import jax, sys; print('jzero', file=sys.stderr, flush=True); import jzero; jax.devices(); "
        "from jzero.plan.compiled.topology import gpu_mesh; gpu_mesh('h200', 8)"
    )
    assert (done.returncode, done.stderr.partition("jzero\n")[2], done.stdout) == (0, "", "")


def test_jzero_first_is_quiet():
    done = run_python("import jzero, jax; jax.devices()")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


def test_a_failed_import_is_told(tmp_path):
    (tmp_path / "jax.py").write_text("raise RuntimeError('no luck')")
    done = run_python(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import jzero; import jax")
    assert done.returncode == 1
    assert done.stderr.endswith("RuntimeError: no luck\n")


def test_other_messages_get_through(capfd):
    with quiet._without_driver_messages():
        os.write(2, b"I0000 cudart_stub.cc:31] Could not find cuda drivers on your machine\na real problem\n")
    assert capfd.readouterr().err == "a real problem\n"


def test_a_visible_gpu_is_left_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(quiet, "_NVIDIA_DEVICES", (str(tmp_path),))
    monkeypatch.delenv("JAX_SKIP_CUDA_CONSTRAINTS_CHECK")
    monkeypatch.setattr(quiet, "CUDA_PLUGINS", ("a_module_that_must_not_be_imported",))
    quiet.quiet_start()
    assert "JAX_SKIP_CUDA_CONSTRAINTS_CHECK" not in os.environ
