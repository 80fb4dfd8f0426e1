"""`python -m step05_hybrid_dp.sample`: let a trained model write, step 5's or step 1's (`make
sample`)."""

from functools import partial

from step01_single_gpu.programs import run_program
from step01_single_gpu.sample import Options, main

from .load import load_run

if __name__ == "__main__":
    run_program(partial(main, load=load_run), Options)
