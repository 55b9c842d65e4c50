"""Fusion: which nodes form one kernel, decided from proved shape relations."""
