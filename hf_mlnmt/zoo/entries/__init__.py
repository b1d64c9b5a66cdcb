"""Entries, a file for each file of hf_mlnmt/modeling that has systems; `hf_mlnmt.zoo.systems` puts them in order."""
