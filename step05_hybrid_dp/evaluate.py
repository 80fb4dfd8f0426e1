"""`python -m step05_hybrid_dp.evaluate`: perplexities and LAMBADA of a run, step 5's or step
1's (`make evaluate`)."""

from functools import partial

from step01_single_gpu.evaluate import Options, main
from step01_single_gpu.programs import run_program

from .load import load_run

if __name__ == "__main__":
    run_program(partial(main, load=load_run), Options)
