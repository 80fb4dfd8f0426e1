# Thin on purpose: each target is one command of a Python module. `make` alone prints the help.
# Works with make 3.81, from a path with spaces, inside an active conda.
SHELL := /bin/sh
PY := .venv/bin/python
# The first Python that torch has wheels for.
FIND_PYTHON = for p in "$(PYTHON)" python3.11 python3.12 python3.13 python3.14 python3; do \
	  if [ -n "$$p" ] && "$$p" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; \
	  then break; fi; done

# make train STEPS=20 …: names on the left, the program's options on the right.
TRAIN_OPTIONS = $(if $(MODEL),--model $(MODEL)) $(if $(STEPS),--steps $(STEPS)) \
	$(if $(CORPUS),--corpus "$(CORPUS)") $(if $(TOKENIZER),--tokenizer $(TOKENIZER)) \
	$(if $(PRECISION),--precision $(PRECISION)) $(if $(RUN),--run "$(RUN)") \
	$(if $(RESUME),--resume "$(RESUME)") $(ARGS)
# What isn't called a GPT-2 goes to BERT's program: it knows the names of both, also near ones.
TRAINER = $(if $(filter-out gpt2-%,$(MODEL))$(filter bert%,$(notdir $(RESUME:/=))),step06_bert_layernorm.pretrain,step05_hybrid_dp.train)
MINE_OPTIONS = $(if $(STEPS),--steps $(STEPS)) $(if $(CORPUS),--corpus "$(CORPUS)") $(if $(RUN),--run "$(RUN)") $(ARGS)
TP = 2
DP = 1
PEERS = fairscale megatron-core deepspeed
# Ranks set their own number of threads. Those that are asked to end have half a minute to save.
TORCHRUN = OMP_NUM_THREADS=1 $(PY) -m torch.distributed.run --standalone \
	--nproc-per-node $(shell expr $(TP) '*' $(DP)) --shutdown-timeout 30
# The planner's defaults are the paper's 8 x 64; TP and DP count only when given.
PLAN_LAYOUT = $(if $(filter command line,$(origin TP)),--tp $(TP)) $(if $(filter command line,$(origin DP)),--dp $(DP))
RUN_OPTION = $(if $(RUN),--run "$(RUN)") $(ARGS)

.PHONY: help setup data train train-step1 sample evaluate export finetune figure6 figure7 paper plan \
	grid512 grid trajectories test test-all lint demo-step2 demo-step3 demo-step4 timeline explain write-gpt2 \
	figures bench hint solution play progress doctor mutants certificate log room setup-offline \
	clean FORCE

help:  ## this list
	@echo "make train and make test are all you need; the rest is here when you want it."
	@echo
	@grep -E '^[a-z0-9-]+:.*##' Makefile | sed -e 's/:.*##/:/' | awk -F: '{printf "  make %-14s%s\n", $$1, $$2}'
	@echo "  make test-step1    the tests of one step"
	@echo "  make bench-single  one benchmark; the others: bert parallel loss endtoend training"
	@echo "                     ablation pipeline plan growth"
	@echo "  the workshop (workshop/README.md), for step 2 and exercise 2.4, say:"
	@echo "  make exercise-step2 | check-step2 | watch-step2 | progress | doctor"
	@echo "  make play EX=2.4   | hint EX=2.4 | solution EX=2.4"
	@echo "  make train MINE=1  to train with what you have finished"
	@echo "  find a planted bug (mutants/README.md):"
	@echo "  make mystery-step2 [SEED=2] | HINT=1 | ANSWER=name"
	@echo
	@echo "  options of train: TP= DP= MODEL= STEPS= CORPUS= TOKENIZER= PRECISION= RUN= RESUME= ARGS=\"--any option\""

setup: .venv/ready  ## build .venv (every target does it by itself); TORCH_INDEX=… takes torch from there

.venv/ready: pyproject.toml constraints.txt $(if $(TORCH_INDEX)$(OFFLINE),FORCE)
	@$(FIND_PYTHON); "$$p" tools/setup.py $(if $(TORCH_INDEX),--torch-index "$(TORCH_INDEX)") \
		$(if $(OFFLINE),--offline "$(OFFLINE)")

setup-offline:  ## wheels and data for machines without a network, TO=/media/stick
	@$(FIND_PYTHON); "$$p" -m workshop offline "$(TO)" $(ARGS)

FORCE:

data: .venv/ready  ## fetch the text and make token files; CORPUS=path takes your own text
	@$(PY) -m step01_single_gpu.data $(if $(CORPUS),--corpus "$(CORPUS)") $(if $(TOKENIZER),--tokenizer $(TOKENIZER)) $(ARGS)

# MINE=1: with the learner's finished functions, beside the reference (workshop/train_mine.py).
train: .venv/ready  ## train a GPT-2 (or MODEL=bert-mini) on real text, on TP=2 x DP=1 ranks, in minutes
	@$(if $(filter 1,$(MINE)),$(PY) -m workshop train --tp $(TP) --dp $(DP) $(MINE_OPTIONS),\
		$(TORCHRUN) -m -- $(TRAINER) --tp $(TP) --dp $(DP) $(TRAIN_OPTIONS))

train-step1: .venv/ready  ## the same without any parallelism
	@$(PY) -m step01_single_gpu.train $(TRAIN_OPTIONS)

sample: .venv/ready  ## let the newest run write; ARGS='--prompt "The Congress"'
	@$(PY) -m step05_hybrid_dp.sample $(RUN_OPTION)

evaluate: .venv/ready  ## the newest run: perplexities, LAMBADA; of a BERT, masked words, order
	@$(PY) -m step06_bert_layernorm.evaluate $(RUN_OPTION)

export: .venv/ready  ## the newest run in Hugging Face's form: TO=folder
	@$(PY) -m step06_bert_layernorm.export --to "$(TO)" $(RUN_OPTION)

finetune: .venv/ready  ## fine-tune a BERT on a task, on TP=2 x DP=1 ranks: TASK=boolq WEIGHTS= DATA= SEEDS=
	@$(TORCHRUN) -m -- step06_bert_layernorm.finetune --tp $(TP) --dp $(DP) \
		$(if $(TASK),--task $(TASK)) $(if $(WEIGHTS),--weights "$(WEIGHTS)") \
		$(if $(DATA),--data "$(DATA)") $(if $(SEEDS),--seeds $(SEEDS)) \
		$(if $(RESUME),--resume "$(RESUME)") $(RUN_OPTION)

plan: .venv/ready  ## does a model fit, how long will it train? MODEL= TP= DP= MACHINE=
	@$(PY) -m step05_hybrid_dp.plan $(if $(MODEL),--model $(MODEL)) $(PLAN_LAYOUT) \
		$(if $(MACHINE),--machine $(MACHINE)) $(ARGS)

grid512: .venv/ready  ## the paper's 8 x 64 grid, 512 processes on this machine, against one process
	@$(PY) -m step05_hybrid_dp.grid512 $(ARGS)

grid: .venv/ready  ## the same at any size: WORLD=64 TP=8
	@$(PY) -m step05_hybrid_dp.grid512 $(if $(WORLD),--world $(WORLD)) --tp $(TP) $(ARGS)

trajectories: .venv/ready  ## one model trained at seven layouts: equal losses, plotted
	@$(PY) -m step05_hybrid_dp.trajectories $(ARGS)

figure7: .venv/ready  ## deep BERTs in both norm orders: who learns? Plotted; ARGS=--fast for a glance
	@$(PY) -m step06_bert_layernorm.stability $(if $(RESUME),--resume "$(RESUME)") $(RUN_OPTION)

test: .venv/ready  ## the tests, two at a time, in minutes
	@$(PY) -m pytest -n 2 tests $(ARGS)

test-all: .venv/ready  ## these and the long ones: kills and restarts, the workshop's catalogue, a browser
	@$(PY) -m pytest -n 2 -m "" tests $(ARGS)

exercise-step%: .venv/ready
	@$(PY) -m workshop exercise "$(patsubst 0%,%,$*)" $(if $(filter 1,$(FORCE)),--force)

check-step%: .venv/ready
	@$(PY) -m workshop check "$(patsubst 0%,%,$*)"

watch-step%: .venv/ready
	@$(PY) -m workshop watch "$(patsubst 0%,%,$*)"

hint solution play: .venv/ready
	@$(PY) -m workshop $@ $(EX)

certificate: .venv/ready  ## which of the steps' proofs your workshop code passed
	@$(PY) -m workshop $@

# These need no torch, so they do without .venv too.
progress doctor:
	@if [ -x $(PY) ]; then $(PY) -m workshop $@; else $(FIND_PYTHON); "$$p" -m workshop $@; fi

mutants: .venv/ready  ## try the tests with planted faults; ARGS="--step 2", ARGS="--name …"
	@$(PY) -m mutants.run $(ARGS)

mystery-step%: .venv/ready
	@$(PY) -m mutants.mystery --step "$(patsubst 0%,%,$*)" $(if $(SEED),--seed $(SEED)) \
		$(if $(HINT),--hint $(HINT)) $(if $(ANSWER),--answer "$(ANSWER)") $(if $(filter 1,$(FORCE)),--force)

log:  ## a log of your own checks, without names (ON=1, ON=0)
	@$(FIND_PYTHON); "$$p" -m workshop log $(if $(filter 1,$(ON)),on) $(if $(filter 0,$(ON)),off)

room:  ## what a room is stuck on, FILES="one.jsonl two.jsonl"
	@$(FIND_PYTHON); "$$p" -m workshop room $(FILES)

# With the learner's finished functions in place, if there are any; REAL=1 tests the real code.
test-step%: .venv/ready  ## the tests of one step: make test-step1 (test-step01 works too)
	@REAL="$(REAL)" $(PY) -m workshop test "$(patsubst 0%,%,$*)" $(ARGS)

lint: .venv/ready  ## ruff and mypy
	@.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy

demo-step2: .venv/ready  ## a parallel MLP on two ranks beside the whole one
	@$(PY) -m step02_mlp_parallel.demo

demo-step3: .venv/ready  ## dropout on replicas, with masks of their own and with shared ones
	@$(PY) -m step03_attention_parallel.demo

demo-step4: .venv/ready  ## the loss over eight ranks, what it sends, and who has which gradient
	@$(PY) -m step04_embeddings_loss.demo

timeline: .venv/ready  ## record a block on two ranks: runs/timeline/ (drawing and Perfetto trace)
	@$(PY) -m step03_attention_parallel.timeline

explain: .venv/ready  ## a page that replays a block at 1, 2, 4, 8 ranks, step by step, and its mistakes
	@$(PY) -m explain $(ARGS)

write-gpt2: .venv/ready  ## a downloaded GPT-2 writes on TP=2 ranks: WEIGHTS=folder ARGS='--prompt "…"'
	@$(PY) -m step04_embeddings_loss.write --weights "$(WEIGHTS)" $(if $(TP),--tp $(TP)) $(ARGS)

figures: .venv/ready  ## draw the chapters' pictures again
	@$(PY) -m step02_mlp_parallel.figure

# Everything is measured side by side with other packages; one that can't be had is named in the tables.
.venv/bench-ready: .venv/ready
	@$(PY) -m pip install --quiet --constraint constraints.txt --editable ".[bench]" || \
		for p in $(PEERS); do $(PY) -m pip install --quiet --constraint constraints.txt "$$p" || \
		echo "$$p can't be installed here; the tables will say so"; done
	@touch $@

bench: .venv/bench-ready  ## all benchmarks: benchmarks/RESULTS.md and plots; ARGS="--only loss,growth"
	@$(PY) -m benchmarks.everything $(ARGS)

bench-%: .venv/bench-ready
	@$(PY) -m benchmarks.$* $(ARGS)

figure6: .venv/ready  ## three sizes of GPT-2, the same steps: who has the lower perplexity?
	@$(PY) -m benchmarks.paper.figure6 $(RUN_OPTION)

paper: .venv/ready  ## docs/paper.md: the paper's tables and figures beside this repository's
	@$(PY) -m benchmarks.paper $(ARGS)

clean:  ## remove .venv, data and caches; runs stay
	rm -rf .venv data .pytest_cache .mypy_cache .ruff_cache .hypothesis
