"""What is public is what an `__init__` lists: this is that list; each name on it loads, shows and explains itself."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import jzero

PUBLIC = {
    "jzero": """BatchError CheckpointError Checkpoints Config ConfigError DamagedCheckpointError Engine Functional
        JzeroError LaunchError LossScaleError Mean ModelError OffloadError SkippedStepsError TrainState
        all_gather attention attention_with_lse axis_index cross_entropy fit functional initialize
        initialize_from_environment make_mesh plan psum remat simulate_devices""",
    "jzero.checkpoint": "Checkpoints Saving Selection load load_newest read_header save",
    "jzero.config": """Config DataConfig OptimizerConfig ResolvedConfig RunConfig SchedulerConfig TrainingArguments
        apply_overrides load_run""",
    "jzero.doctor": "Finding Level Machine examine this_machine",
    "jzero.gather": "GradSums Limits first_uses gather_at_use scanned_dims",
    "jzero.jaxpr": """Equation JAX_VERSION Program Subprogram Variable bind called_program equation_key
        equations evaluate every_equation inner_jaxprs interpret name_of overlap_options parts place_of
        restrict run_replacing scan_arity subprogram trace""",
    "jzero.launch": "Launch initialize_from_environment leave_failed read_launch",
    "jzero.models": """BuiltModel FAMILIES GPT GPTConfig GPTLinen LSTM LSTMConfig Llama LlamaConfig ResNet ResNetConfig
        SIZES ViT ViTConfig build classification_loss from_hf next_token_loss with_size""",
    "jzero.models.hf": """Decoder DecoderConfig Encoder EncoderConfig GPT2 GPT2Config HFWeights Rope
        row_classification_loss""",
    "jzero.observe": "ModelFlops model_flops peak_flops",
    "jzero.ops": "attention attention_with_lse cross_entropy",
    "jzero.optim": "Optimizer build_optimizer",
    "jzero.plan": """ClosedForm Cluster Collective DeepSpeedEstimate GPUS GpuFigures KINDS
        Largest Layouts LeafLayout LinkTraffic Loop LoopTraffic Memory MemoryUse Plan Program
        Recommendation Row RunOptions Setting Span StepTime Timeline closed_form compile_only compile_step
        deepspeed_estimate estimate_step gpu_figures gpu_mesh largest_model max_batch parameter_layouts
        plan read_program""",
    "jzero.plan.render": "memory_bars memory_over_time report_html timeline_figure",
    "jzero.schedules": "Momentum build_momentum build_schedule hf_schedule",
    "jzero.train.data": "Batches Corpus Mixture VOCAB_SIZE Windows load_corpus",
    "jzero.train.monitor": "ConsoleView JsonLines MetricWriter event_writers",
}
NAMES = [(package, name) for package, names in PUBLIC.items() for name in names.split()]
PACKAGES = [
    "jzero",
    *(module.name for module in pkgutil.walk_packages(jzero.__path__, "jzero.") if module.ispkg),
]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_list_is_what_the_package_says(package):
    module = importlib.import_module(package)
    assert sorted(getattr(module, "__all__", [])) == sorted(PUBLIC.get(package, "").split())
    assert set(getattr(module, "__all__", [])) <= set(dir(module))
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        module.no_such_name  # noqa: B018


@pytest.mark.parametrize(("package", "name"), NAMES)
def test_a_public_name_resolves_and_explains_itself(package, name):
    value = getattr(importlib.import_module(package), name)
    if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value):
        assert inspect.getdoc(value)
        if inspect.isclass(value) and issubclass(value, tuple):
            assert not value.__doc__.startswith(f"{name}("), "a NamedTuple's own docstring"
    else:  # a constant, or a name for a type: neither can hold a docstring
        assert name.isupper() or name in ("Level", "Program")


@pytest.mark.parametrize("package", PACKAGES)
def test_no_attribute_hides_a_submodule(package):
    module = importlib.import_module(package)
    for submodule in pkgutil.iter_modules(module.__path__):
        if submodule.name != "__main__":
            found = importlib.import_module(f"{package}.{submodule.name}")
            assert getattr(module, submodule.name) is found


@pytest.mark.parametrize(("package", "name"), NAMES)
def test_no_function_has_the_name_of_its_module(package, name):
    value = getattr(importlib.import_module(package), name)
    if inspect.isfunction(value):
        assert value.__module__.rpartition(".")[2] != name


def test_type_checkers_see_the_names_that_load_late():
    """The imports under `TYPE_CHECKING`, the table beside them and `__all__` name the same things."""
    for package, names in PUBLIC.items():
        source = Path(importlib.import_module(package).__file__ or "").read_text()
        if "lazy_names(" not in source:
            continue
        before, _, after = source.partition("if TYPE_CHECKING:")[2].partition("else:")
        table = after.partition("__all__")[0]
        late = [name for name in names.split() if f'"{name}"' in table or f'"{package}.{name}"' in table]
        imported = [name for line in before.splitlines() for name in line.partition(" import ")[2].split(", ") if name]
        assert sorted(imported) == sorted(late)


def test_a_submodule_is_there_without_an_import_of_its_own():
    program = "import jzero; print(jzero.checkpoint.convert.__name__, jzero.models.GPT.__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "jzero.checkpoint.convert GPT\n"
