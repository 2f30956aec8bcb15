# Everything a newcomer needs: `make demo`, `make test`, `make lint`. Targets repeat only what is stale.

# A Python that pyproject.toml allows; override with PYTHON=…
PYTHON ?= $(shell for candidate in python3.11 python3.12 python3; do \
	$$candidate -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null \
	&& echo $$candidate && break; done)
# The torch to install; override to get another build, e.g. TORCH="torch==2.13.0 --index-url …".
TORCH ?= torch==2.13.0
VENV ?= .venv
BUF_VERSION := 1.75.0
PIP_AUDIT_VERSION := 2.10.1
BUF := node_modules/.bin/buf

MODEL := models/SmolLM2-135M-Instruct.Q4_1.gguf
ARTEFACT := models/smollm2-135m-instruct-w4
# Fitted on a GPU to the weights that `quantize --scheme channel` makes, the same to the bit everywhere.
COMPENSATORS := spearhead/assets/smollm2-135m-instruct
TABLE := models/latency-table.json
PROMPT ?= Explain in three sentences why the sky is blue.
BENCH ?= --draft-tokens auto,0 --compare-transformers

PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
STAMP := $(VENV)/.installed

# Tests run services side by side; idle threads that spin would slow all of them. The command line decides for
# the services that it starts itself.
test: export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: help setup model artefact demo test lint protos helm chart audit sbom bench clean
.DELETE_ON_ERROR:

help:
	@echo "make demo [PROMPT=…]  answer a prompt with three local services (first run: a few minutes)"
	@echo "make test             all tests          make lint     style, types, borders, contract"
	@echo "make bench            load and latency   make protos   regenerate spearhead/v1"
	@echo "make chart            regenerates the Helm chart's table of values and schema of settings"
	@echo "make audit            known vulnerabilities of what the images install"
	@echo "make sbom             bills of materials of the images, in .cache/sbom"
	@echo "make setup            .venv only         make clean    remove .venv, models and caches"

setup: $(STAMP)

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or 3.12 found; install one or set PYTHON=…" >&2; exit 1; }
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade pip
	$(PIP) install --quiet $(TORCH)
	$(PIP) install --quiet --editable '.[models,fast,dev]'
	@touch $@

model: $(MODEL)

$(MODEL): tools/fetch_model.py | $(STAMP)
	$(PY) tools/fetch_model.py $@
	@touch $@

artefact: $(ARTEFACT)/spear/ec.json

$(ARTEFACT)/spear/ec.json: $(COMPENSATORS)/ec.json | $(STAMP) $(MODEL)
	rm -rf $(ARTEFACT)
	$(PY) -m spearhead.cli quantize $(MODEL) $(ARTEFACT) --scheme channel --brief
	$(PY) -m spearhead.cli attach $(ARTEFACT) $(COMPENSATORS)
	@touch $@

demo: artefact
	@$(PY) -m spearhead.cli demo --model $(ARTEFACT) --draft $(MODEL) -- '$(subst ','\'',$(PROMPT))'

test: setup model helm
	$(PY) -m pytest

lint: setup $(if $(shell command -v npm),$(BUF))
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports
	$(PY) tools/generate_protos.py --check
	$(PY) tools/generate_chart.py --check
	@$(PY) tools/check_contract.py

protos: setup
	$(PY) tools/generate_protos.py

# For the chart's tests; without a registry they are skipped.
helm: setup
	$(PY) tools/get_helm.py .cache/helm

chart: setup
	$(PY) tools/generate_chart.py

# Its own environment: what it needs is no dependency of the product. AUDIT=--skip-when-unreachable for machines that
# do not reach the advisory database; it then says SKIPPED and why.
audit: setup
	test -x .cache/audit/bin/pip-audit || { $(PY) -m venv .cache/audit \
	&& .cache/audit/bin/pip install --quiet --disable-pip-version-check pip-audit==$(PIP_AUDIT_VERSION); }
	$(PY) tools/audit_dependencies.py --pip-audit .cache/audit/bin/pip-audit $(AUDIT)

sbom: setup
	mkdir -p .cache/sbom
	for image in scheduler cpu gpu; do $(PY) tools/write_sbom.py $$image .cache/sbom/$$image.cdx.json || exit 1; done

$(BUF):
	npm install --prefix . --silent --no-save --no-package-lock --no-audit --no-fund @bufbuild/buf@$(BUF_VERSION)

$(TABLE): $(ARTEFACT)/spear/ec.json
	$(PY) -m spearhead.cli profile --model $(ARTEFACT) --draft $(MODEL) --output $@

bench: artefact $(TABLE)
	$(PY) -m spearhead.cli bench --model $(ARTEFACT) --draft $(MODEL) --latency-table $(TABLE) $(BENCH)

clean:
	rm -rf $(VENV) models node_modules .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
