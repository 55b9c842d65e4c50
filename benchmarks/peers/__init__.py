"""The product against its peers on streams of shapes; see ``benchmarks.peers.__main__``."""
