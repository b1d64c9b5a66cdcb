"""`python -m hf_mlnmt` is `hf-mlnmt`: the form that `accelerate launch -m hf_mlnmt train ...` needs."""

from hf_mlnmt.cli import main

if __name__ == "__main__":
    main()
