"""Text of our own, codes that subword-nmt 0.3.8 learnt of it, and what it cut lines into by them."""

CODES = """#version: 0.2
t h
o w
e r</w>
l ow
th e</w>
low er</w>
s t</w>
e st</w>
v er</w>
th a
tha n</w>
r i
ri ver</w>
ow s</w>
n e
w i
wi d
s lower</w>
r ows</w>
o n
on e</w>
ne w
n d</w>
low s</w>
"""
TOKENS = [
    "the",
    "o@@",
    "est",
    ".",
    "lower",
    "river",
    "f@@",
    "than",
    "er",
    "a@@",
    "lows",
    "slower",
    "low@@",
    "one",
    "new@@",
    "g@@",
    "rows",
    "nd",
    "wid@@",
    "th@@",
    "e@@",
    "n@@",
    "b@@",
    "t@@",
    "a",
    "ne@@",
    "r",
    ",",
    "f",
    "m",
    "d@@",
    "y",
    "k@@",
    "ows",
    "s@@",
    "e",
    "w@@",
    "h@@",
    "o",
    "r@@",
]  # 40; it lacks pieces that the codes make of some of the lines below
CUT = {
    "the lower river flows slower than the lowest one .": "the lower river f@@ lows slower than the low@@ est one .",
    "a newer flower , and the widest": "a new@@ er f@@ lower , a@@ nd the wid@@ est",
    "the rower knows the flow .": "the r@@ ow@@ er k@@ n@@ ows the f@@ l@@ o@@ w .",
    "über the flowers , nowhere": "ü@@ b@@ er the f@@ low@@ e@@ r@@ s , n@@ ow@@ h@@ e@@ r@@ e",
    "  the   lowest   new er@@ row": "the low@@ est ne@@ w e@@ r@@ @@@ @ r@@ o@@ w",
    "row": "r@@ o@@ w",
    "": "",
}
