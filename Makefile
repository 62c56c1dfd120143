# Two commands do everything: `make demo` and `make test`. Both make the environment that they need, once.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
BIN := .venv/bin
# Python compiles what is imported, when it is; to compile all of PyTorch and TensorFlow takes minutes.
PIP := $(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --constraint constraints.txt
# A file's tests stay with one worker, which makes their fixtures once; files with slow tests come first (tests/conftest.py).
PYTEST := $(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder
# It asks for a second onnxruntime, which would overwrite the first.
JAX2ONNX := $(PIP) --no-deps jax2onnx
EXTRAS := torch tensorflow sklearn boosting jax loadgen serving dask store video signing assistants
ARGS ?=
# Where containers set it, each process would compile this program anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo onnx test test-all nightly check types style documentation docs wheel up clean zoo $(EXTRAS) arm64

demo: .venv/core  ## a ResNet-18 on real digits, from training to the fastest file that still answers right
	$(BIN)/gauntlet run digits-resnet18

onnx: .venv/onnx  ## what `gauntlet run model.onnx` needs: everything but a training framework
	@echo "Ready: $(BIN)/gauntlet run model.onnx --data images"

test: .venv/dev  ## the tests, but for the slow ones
	$(PYTEST) $(ARGS)

test-all: .venv/dev  ## the slow ones too; the nightly ones alone are left out
	$(PYTEST) -m "not nightly" $(ARGS)

nightly: .venv/dev arm64  ## random kills, PostgreSQL, browsers, emulated processors, simulations, further models of each kind; no file is skipped
	CI=1 $(PYTEST) -m nightly $(ARGS)
	$(BIN)/python benchmarks/zoo.py
	.ci/without_wings
	.ci/without_wings --at-once --all

zoo: .venv/dev  ## models of all frameworks, each with one line, judged outside the product
	$(BIN)/python benchmarks/zoo.py $(ARGS)

check: types style documentation  ## style, types, import floors, documentation; side by side with -j2

types: .venv/dev
	$(BIN)/mypy

style: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

documentation: .venv/dev
	$(BIN)/python docs/generate --check
	$(BIN)/zensical build --strict

docs: .venv/docs  ## the documentation with a search box, in site/; generated pages are written anew
	$(BIN)/python docs/generate
	$(BIN)/zensical build --clean --strict
	@echo "Read it: $(BIN)/python -m http.server --directory site"

wheel: .venv/onnx  ## dist/*.whl, for `pip install`: what an ONNX file needs, with ONNX Runtime's CPU build
	$(BIN)/python .ci/wheel

up: .venv/core  ## Prefect, MLflow, the deployments and workers on this machine, until `gauntlet down`
	$(BIN)/gauntlet up

$(EXTRAS): %: .venv/with-%  ## what not every user needs

arm64:  ## an Arm Python with ONNX Runtime in ~/.cache, for portability.emulate
	PYTHON=$(BIN)/python .ci/arm64

clean:  ## remove the environment and all runs
	rm -rf .venv .gauntlet

.venv/onnx: pyproject.toml constraints.txt
	@$(PYTHON) -c "import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))" || \
		{ echo "$(PYTHON) is not Python 3.11, 3.12 or 3.13; name one: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c "import ensurepip" 2>/dev/null || .ci/debian python3-venv
	@echo "Installing the pipeline; about 1.5 GB, a few minutes, once ..."
	$(PYTHON) -m venv .venv
	$(PIP) --editable '.[pipeline]'
	@$(BIN)/python -m flows.servers.database_templates
	@touch $@

.venv/docs: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) --editable . zensical
	@touch $@

.venv/core: .venv/onnx
	@echo "Installing PyTorch; about 5.6 GB more, a few minutes, once ..."
	$(PIP) --editable '.[pipeline,torch]'
	@touch $@

.venv/with-%: .venv/onnx
	$(PIP) --editable '.[$*]'
	@$(if $(filter jax,$*),$(JAX2ONNX))
	@touch $@

.venv/dev: .venv/core
	$(PIP) --editable '.[dev,pipeline,torch,tensorflow,sklearn,jax,loadgen,serving,dask,access,store,postgres,kubernetes,boosting,video,assistants,signing]'
	@$(JAX2ONNX)
	@command -v chromium chromium-browser google-chrome >/dev/null || .ci/debian chromium
	@command -v qemu-x86_64 >/dev/null || .ci/debian qemu-user
	@command -v g++ >/dev/null || .ci/debian g++
	@test -e .venv/include/onnxruntime || .ci/onnxruntime_headers .venv/include/onnxruntime
	@command -v npm >/dev/null || .ci/debian npm
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null || .ci/debian postgresql
	@command -v promtool >/dev/null || .ci/debian prometheus
	@touch $@
