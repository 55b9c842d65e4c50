"""Programs made without the compiler: one fixed one, one of the size of a model's layer, and hypothesis-made small ones."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from vm import program as pg
from vm.dtypes import DTYPES, item_size
from vm.intcode import ADD, LE, MUL, Builder
from vm.program import INPUT, OUTPUT, PINNED, TEMP


def rows(builder: Builder, elements: int) -> int:
    """The register with the lane rows of ``elements``."""
    from vm.intcode import FLOORDIV

    return builder.op(FLOORDIV, builder.op(ADD, elements, builder.const(127)), builder.const(128))


def sample() -> pg.Program:
    """x: float32[n, 4], y: float32[n] with n in [0, 1000] a multiple of 2; one kernel, one host step, one conditional."""
    solve = Builder(3)
    code = Builder(1)
    four = code.const(4)
    elements = code.op(MUL, 0, four)
    zero, one = code.const(0), code.const(1)
    x_rows, y_rows = rows(code, elements), rows(code, 0)
    total = code.op(ADD, x_rows, y_rows)
    small = code.op(LE, 0, code.const(600))
    words = np.arange(1, 9, dtype=np.uint64) << np.uint64(40)
    template = pg.Template(
        words,
        (pg.Patch(1, 0, 16, 0), pg.Patch(1, 16, 16, 1), pg.Patch(2, 0, 32, 1)),
        (pg.Reloc(3, 0), pg.Reloc(4, 1)),
        n_params=2,
        n_buffers=2,
        name="layer_norm",
    )
    buffers = (
        pg.Buffer(INPUT, "float32", elements, zero, (0, four), input=0, name="x"),
        pg.Buffer(INPUT, "float32", 0, x_rows, (0,), input=1, name="y"),
        pg.Buffer(TEMP, "float32", elements, zero, (0, four), name="t"),
        pg.Buffer(OUTPUT, "float32", elements, zero, (0, four), output=0, name="out"),
        pg.Buffer(PINNED, "bfloat16", code.const(6), None, (code.const(2), code.const(3)), constant=0),
        pg.Buffer(TEMP, "bool", one, zero, ()),
    )
    kernel = pg.KernelStep(0, (0, elements), (2, 0), name="layer_norm_0")
    host = pg.HostStep("copy", {"shape": [{"reg": 0}, 4], "mode": ("a", 1.5)}, (2,), (3,))
    return pg.Program(
        symbols=(pg.Symbol("n", 0, 1000, 2, origin="dvm.spec"),),
        inputs=(
            pg.TensorSpec("x", "float32", (0, four), ("n", "4")),
            pg.TensorSpec("y", "float32", (0,), ("n",)),
        ),
        outputs=(pg.TensorSpec("out", "float32", (0, four), ("n", "4")),),
        solve=solve.finish(),
        solved=(0,),
        code=code.finish(),
        checks=(pg.Check(small, "n = {n} is above 600", "layer_norm at model.py:3"),),
        templates=(template,),
        buffers=buffers,
        steps=(kernel, host, pg.CondStep(5, ((kernel,), (host,)))),
        constants=(np.arange(6).astype(DTYPES["bfloat16"]).reshape(2, 3),),
        arena_rows={(INPUT, 4): total, (TEMP, 4): x_rows, (TEMP, 1): one, (OUTPUT, 4): x_rows},
        in_tree=("tuple", [{"b": 1, "a": None}]),
        out_tree=["leaf"],
        debug={"graph": ["layer_norm(x)"], 3: {"big": 1 << 80}},
    )


def layer(kernels: int = 10, registers: int = 300, patches: int = 40) -> pg.Program:
    """A program of the size of a transformer layer, to time a bind: each template has ``patches`` patches over 60 words."""
    code = Builder(2)
    both = code.op(MUL, 0, 1)
    last = both
    while code.finish().n_registers < registers - 1:
        last = code.op(ADD, last, code.const(code.finish().n_registers))
    last = rows(code, both)
    templates = tuple(
        pg.Template(
            np.full(60, k, np.uint64) << np.uint64(56),
            tuple(pg.Patch(i % 40 + 10, 24 * (i // 40), 24, i % 8) for i in range(patches)),
            tuple(pg.Reloc(i, i) for i in range(3)),
            8,
            3,
        )
        for k in range(kernels)
    )
    buffers = (
        pg.Buffer(INPUT, "float32", both, code.const(0), (0, 1), input=0),
        *(pg.Buffer(TEMP, "float32", both, code.const(0), (0, 1)) for _ in range(40)),
        pg.Buffer(OUTPUT, "float32", both, code.const(0), (0, 1), output=0),
    )
    steps = tuple(pg.KernelStep(k, tuple(range(k, k + 8)), (0, k + 1, len(buffers) - 1)) for k in range(kernels))
    spec = pg.TensorSpec("x", "float32", (0, 1), ("b", "s"))
    return pg.Program(
        symbols=(pg.Symbol("b", 1), pg.Symbol("s", 1, 4096)),
        inputs=(spec,),
        outputs=(spec,),
        solve=Builder(2).finish(),
        solved=(0, 1),
        code=code.finish(),
        checks=(),
        templates=templates,
        buffers=buffers,
        steps=steps,
        constants=(),
        arena_rows={(INPUT, 4): last, (TEMP, 4): last, (OUTPUT, 4): last},
    )


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def programs(draw: st.DrawFn, bindable: bool = False) -> pg.Program:
    """Small sound programs of any structure: what their words mean is nobody's business here. With ``bindable``, symbols
    from 0 to 14 break no check and no arena."""
    n = draw(st.integers(1, 3))
    code = Builder(n)
    for _ in range(draw(st.integers(0, 6))):
        top = code.finish().n_registers - 1
        code.op(draw(st.integers(1, 13)), draw(st.integers(0, top)), draw(st.integers(0, top)))
    code.select(0, n - 1, code.const(draw(st.integers(-(1 << 70), 1 << 70))))
    zero, one = code.const(0), code.const(1)
    many, most = code.const(1 << 20), code.const(1 << 30)
    reg = st.integers(0, code.finish().n_registers - 1)
    elements, offset, arena, dim, check = reg, reg, reg, reg, reg
    if bindable:
        elements, offset, arena, check = st.just(many), st.sampled_from([zero, one]), st.just(most), st.just(one)
        dim = st.integers(0, n - 1)
    dtype = st.sampled_from(["float32", "bfloat16", "int8", "int64", "bool"])
    shapes = draw(st.lists(st.lists(st.integers(0, 3), max_size=3).map(tuple), max_size=2))
    constants = tuple(np.ones(shape, DTYPES[draw(dtype)]) for shape in shapes)
    spec = pg.TensorSpec("x", draw(dtype), tuple(range(n)), tuple(f"s{i}" for i in range(n)))
    arenas = {(space, size): draw(arena) for space in (INPUT, TEMP, OUTPUT) for size in (1, 2, 4, 8)}
    buffers = [
        pg.Buffer(INPUT, spec.dtype, draw(elements), draw(offset), spec.dims, input=0, name=draw(st.text(max_size=4))),
        pg.Buffer(OUTPUT, spec.dtype, draw(elements), draw(offset), spec.dims, output=0),
        pg.Buffer(TEMP, "bool", one, zero, ()),
        pg.Buffer(TEMP, "int32", one, zero, ()),
        *(
            pg.Buffer(PINNED, c.dtype.name, code.const(c.size), None, tuple(map(code.const, c.shape)), constant=i)
            for i, c in enumerate(constants)
        ),
        *(
            pg.Buffer(TEMP, draw(dtype), draw(elements), draw(offset), tuple(draw(st.lists(dim, max_size=2))))
            for _ in range(2)
        ),
    ]
    buffer = st.integers(0, len(buffers) - 1)
    templates = []
    for _ in range(draw(st.integers(1, 2))):
        size = draw(st.integers(1, 6))
        free = [(w, lo) for w in range(size - 1) for lo in (0, 20, 40)]
        holes = draw(st.lists(st.sampled_from(free), unique=True, max_size=4)) if free else []
        templates.append(
            pg.Template(
                np.array(draw(st.lists(st.integers(0, (1 << 64) - 1), min_size=size, max_size=size)), np.uint64),
                tuple(pg.Patch(w, lo, draw(st.integers(1, 20)), draw(st.integers(0, 1))) for w, lo in holes),
                (pg.Reloc(size - 1, 0),),
                2,
                1,
                name=draw(st.text(max_size=3)),
            )
        )
    kernel = st.builds(
        lambda t, p, b: pg.KernelStep(t, p, (b,), name="k"),
        st.integers(0, len(templates) - 1),
        st.tuples(reg, reg),
        buffer,
    )
    host = st.builds(
        lambda r, a: pg.HostStep("elementwise", {"op": "add", "dim": {"reg": r}, "extra": a}, (0,), (1,)), reg, plain
    )
    blocks = st.recursive(
        st.lists(kernel | host, max_size=2).map(tuple),
        lambda b: (
            st.tuples(st.builds(lambda x, y: pg.CondStep(2, (x, y)), b, b))
            | st.tuples(st.builds(lambda x, y: pg.WhileStep(x, 2, y), b, b))
            | st.tuples(st.builds(lambda r, x, v: pg.ForStep(r, 3, x, v), reg, b, st.booleans()))
        ),
        max_leaves=4,
    )
    return pg.Program(
        symbols=tuple(pg.Symbol(f"s{i}", 0, draw(st.none() | st.integers(14, 1 << 62)), 1 + i, i) for i in range(n)),
        inputs=(spec,),
        outputs=(spec,),
        solve=Builder(n).finish(),
        solved=tuple(range(n)),
        code=code.finish(),
        checks=(pg.Check(draw(check), "message {s0}", "origin"),),
        templates=tuple(templates),
        buffers=tuple(buffers),
        steps=draw(blocks),
        constants=constants,
        arena_rows=arenas,
        in_tree=draw(plain),
        out_tree=draw(plain),
        debug={"note": draw(plain)},
    )


def constant_bytes(program: pg.Program) -> int:
    """Bytes of all constants."""
    return sum(math.prod(c.shape) * item_size(c.dtype.name) for c in program.constants)
