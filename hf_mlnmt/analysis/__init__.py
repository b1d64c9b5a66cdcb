"""Looking into trained models: what attention reads, what parts are worth, what states know, what outputs lack.

One file a question: its statistic, and the study that asks it of several systems and draws the answer. The commands
`hf-mlnmt analyse ...` write what they find.
"""
