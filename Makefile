# make demo     train a small GPT under ZeRO-3 on 8 simulated devices, in place of what the last one left
# make test     run the tests
# make test-fast  run a part of them in two minutes
# make test-full  run them and those that take an hour
# make test-torch  read files that PyTorch wrote, with a PyTorch in a folder of its own (Python 3.11)
# make check    lint, layers of imports, types and the examples in docstrings
# make docs     write the tables of docs/configuration.md and draw docs/passes.svg anew
# make notebooks  run the notebooks and keep what they show
# make results  compile what docs/results shows, for GPUs that are not there
# make bench    measure steps on simulated devices, programs compiled for GPUs, and a GPU if there is one (hours)
# make clean    remove what the above made
#
# The first of them installs jzero into .venv. PYTHON=... chooses the interpreter, VENV=... the folder,
# and `make demo ARGS="deepspeed.zero_optimization.stage=2"` changes the demo's run file.

VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do $$p $(NEW_ENOUGH) && echo $$p && break; done)

.PHONY: demo test test-fast test-full test-torch check docs notebooks results bench install clean

demo: $(INSTALLED)
	$(BIN)/jzero train configs/demo.json --devices 8 --overwrite $(ARGS)

test: $(INSTALLED)
	$(BIN)/python -m pytest tests -n 2 --dist worksteal

# What to run while working: something quick of every folder, named in tests/fast.txt, one file or test a line. Whoever
# adds a folder of tests adds a line for it, or tests/house/test_fast.py fails; two minutes on two cores are the limit.
test-fast: $(INSTALLED)
	$(BIN)/python -m pytest @tests/fast.txt -n 2 --dist worksteal

# The extra hf-test goes into a folder of its own: the other tests are to pass without PyTorch.
test-full: $(INSTALLED)
	$(BIN)/python -m pytest tests -n 2 --dist worksteal -m "not browser and not torch"
	test -d .venv-hf || $(BIN)/pip install -qq --disable-pip-version-check --target .venv-hf torch==2.13.0 'transformers>=5.23'
	PYTHONPATH=.venv-hf $(BIN)/python -m pytest -m full tests/models/hf/test_live.py -n 2 --dist worksteal

# A version whose wheel on PyPI is a build for CPUs, in a folder of its own.
test-torch: $(INSTALLED)
	test -d .venv-torch || $(BIN)/pip install -qq --disable-pip-version-check --target .venv-torch torch==2.13.0
	PYTHONPATH=.venv-torch $(BIN)/python -m pytest -m torch tests/checkpoint/convert/test_torch_file.py

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python -m pytest jzero

docs: $(INSTALLED)
	$(BIN)/python -m jzero.config.show.reference docs/configuration.md
	$(BIN)/python docs/draw_passes.py

notebooks: $(INSTALLED)
	TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/jupyter-execute --inplace --NotebookClient.record_timing=False \
	    --NotebookClient.coalesce_streams=True notebooks/*.ipynb
	$(BIN)/nbstripout --keep-output --keep-id --extra-keys "metadata.language_info.version" notebooks/*.ipynb

results: $(INSTALLED)
	$(BIN)/python benchmarks/results.py

bench: $(INSTALLED)
	$(BIN)/python benchmarks/cpu_mesh.py
	$(BIN)/python benchmarks/attention.py
	$(BIN)/python benchmarks/gpu_program.py
	$(BIN)/python benchmarks/gpu_kinds.py
	$(BIN)/python benchmarks/closed_form_error.py
	$(BIN)/python benchmarks/compile_time.py
	$(BIN)/python benchmarks/checkpoint.py
	$(BIN)/python benchmarks/tokenizing.py
	$(BIN)/python benchmarks/hf_weights.py
	$(BIN)/python benchmarks/gpu_real.py

install: $(INSTALLED)

$(INSTALLED): pyproject.toml
	@$(PYTHON) $(NEW_ENOUGH) || { echo "jzero needs Python 3.11 or newer: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "Installing into $(VENV) with $$($(PYTHON) --version); this takes a minute or two, once."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -qq --disable-pip-version-check --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv* runs build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
