"""The search in compiled code on a CPU: a decoder step for a batch (step.py), and the whole search of one sentence
(one_sentence.py); int8.py has linear layers in int8."""
