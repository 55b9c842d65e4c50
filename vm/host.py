"""placeholder while the binder is built"""
NAMES = ("copy", "elementwise", "sort", "add")
CODES = {n: i for i, n in enumerate(NAMES)}
FUNCTIONS: dict = {}
