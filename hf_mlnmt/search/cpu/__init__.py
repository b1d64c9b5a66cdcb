"""The CPU floor of the search: one decoder step in compiled code, for a batch (step.py) and in a whole search of one
sentence (one_sentence.py); int8.py has the linear layers in int8."""
