"""From a fused graph to a ``Program``: buffers, steps, templates, integer code, launch checks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from codegen import division, host_schedule, local_memory, order, precision, stacking, sync
from codegen.assemble import Assembled, assemble
from codegen.choices import Clock, Decision, Speculation, rows_of
from codegen.lower import Lowering, Places
from codegen.memory_plan import MemoryPlan
from codegen.precision import Body
from codegen.structure import Finished, Lowered, Structure
from graph_kernel.fusion import fuse as fusion
from graph_kernel.fusion.axes import Axes, Refusal
from graph_kernel.fusion.division import DIVIDED
from graph_kernel.fusion.fuse import Group, Plan
from graph_kernel.fusion.layout import Layout, Sharing
from graph_kernel.fusion.rules import SPECULATIVE, Rule, row_lengths
from graph_kernel.ir import Graph, Node, Value
from graph_kernel.passes.liveness import defined_in_order
from symbolic import Dim, Expr, ceildiv, highest, limits, lower, lower_relation, numel, solve
from vm import intcode
from vm.chip import Chip
from vm.errors import CompileError, UnsupportedOp
from vm.intcode import Builder, Reg
from vm.program import (
    INPUT,
    LANES,
    OUTPUT,
    PINNED,
    TEMP,
    Buffer,
    Check,
    Choice,
    CondStep,
    DataSize,
    ForStep,
    HostStep,
    KernelStep,
    Program,
    Step,
    Symbol,
    Template,
    TensorSpec,
    WhileStep,
)
from vm.program.stages import Uses, kernels_of

MOST_OF_A_BLOCK = 6  # kernels of a program that is a block of a model, whatever the sizes


class ProgramBuilder:
    """Builds one program. ``emit`` handles a graph and is used again for branches and bodies."""

    def __init__(
        self,
        graph: Graph,
        chip: Chip,
        fused: bool = True,
        siblings: fusion.Siblings | None = None,
        stacked: bool = True,
        clock: Callable[[Chip], Clock] | None = None,
    ) -> None:
        self.graph, self.scope, self.chip, self.fused, self.siblings = graph, graph.scope, chip, fused, siblings
        self.stacked, self.speculative = stacked, clock is not None
        dims = [(v.name, axis, d) for v in graph.inputs for axis, d in enumerate(v.shape)]
        self.solution = solve(self.scope, dims)
        self.symbols = [name for name, _ in self.solution.steps]
        self.makers = defined_in_order(graph)  # data-dependent sizes: symbol -> the value and the axis that have it
        self.tops = limits(self.scope, list(self.makers))
        self.made: dict[Value, int] = {}  # results of host nodes and their buffers
        self.symbols += self.makers
        self.code = Builder(len(self.symbols))
        self.env = {name: i for i, name in enumerate(self.symbols)}
        self.templates: list[Template] = []
        self.template_index: dict[tuple, int] = {}
        self.buffers: list[Buffer] = []
        self.constants: list[np.ndarray] = []
        self.constant_index: dict[tuple, int] = {}
        self.memory = MemoryPlan(self.scope, self.code, self.symbols)
        self.plans: dict[Graph, Plan] = {}
        self.known = fusion.Known()
        self.finished: dict[Hashable, Finished] = {}  # code of kernels by structure
        self.kernels: list[dict[str, Any]] = []
        self.speculation = None if clock is None else Speculation(self.scope, chip, self.symbols, clock(chip))
        self.choices: dict[Reg, int] = {}  # by the register that says which form runs
        self.decided: list[dict[str, Any]] = []
        self.cuts: list[dict[str, str]] = []
        self.merges: list[dict[str, str]] = []

    # --- integers -----------------------------------------------------------------------------------------------------------------
    def reg(self, dim: Dim) -> Reg:
        """The register with a dim's value."""
        return lower(dim, self.code, self.env)

    def regs(self, dims: Sequence[Dim]) -> tuple[Reg, ...]:
        return tuple(self.reg(d) for d in dims)

    # --- buffers ------------------------------------------------------------------------------------------------------------------
    def buffer(self, value: Value, space: int, where: Reg | None = None, **links: Any) -> int:
        """A new buffer of a value's size in an arena (or pinned); it has no memory ``where`` that register is 0."""
        items = value.dtype.itemsize // min(8, value.dtype.itemsize)
        elements = self.reg(numel(value.shape))
        buffer = Buffer(space, value.dtype.name, elements, None, self.regs(value.shape), name=value.name, **links)
        self.buffers.append(buffer)
        number = len(self.buffers) - 1
        if space != PINNED:
            size = self._rows(value.shape, items)
            rows = self.reg(size)
            if where is None:
                self.memory.need(number, min(8, value.dtype.itemsize), size, rows)
            else:
                self.memory.need(number, min(8, value.dtype.itemsize), None, self.code.op(intcode.MUL, where, rows))
        return number

    def _rows(self, shape: Sequence[Dim], items: int) -> Dim:
        """Lane rows that a tensor needs at most: memory is laid out before sizes that depend on data are known."""
        size = highest(self.scope, numel(shape), self.tops) if self.tops else numel(shape)
        return ceildiv(size * items, LANES)

    def constant(self, node: Node) -> int:
        """The pinned buffer of a constant; equal constants share one."""
        array = np.asarray(node.attrs["value"], node.output.dtype, order="C")  # a number stays one: of rank 0
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self.constant_index:
            self.constants.append(array)
            self.constant_index[key] = self.buffer(node.output, PINNED, constant=len(self.constants) - 1)
        return self.constant_index[key]

    # --- graphs -------------------------------------------------------------------------------------------------------------------
    def emit(self, graph: Graph, bound: dict[Value, int], targets: Sequence[int | None]) -> list[Step]:
        """Steps of a graph whose inputs are in the buffers ``bound``; its results go to ``targets`` (None: to an output of the
        program)."""
        plan = self._fused(graph)
        buffers = dict(bound)
        owners = self._claim_results(graph, plan, buffers, targets)
        steps: list[Step] = []
        decisions = self._decisions(graph, plan)
        for step in plan.steps:
            for value in step.stores if isinstance(step, Group) else step.outputs:
                value = plan.aliases.get(value, value)  # a slot lies in a larger value
                if value not in buffers and value in owners:
                    buffers[value] = self.buffer(value, OUTPUT, output=owners[value])
                elif value not in buffers and value in plan.stored:
                    buffers[value] = self.buffer(value, TEMP)
            if isinstance(step, Group):
                steps += self.forms(step, decisions.get(step), plan, buffers)
            else:
                steps += self.alone(step, plan, buffers)
        return steps

    def _fused(self, graph: Graph) -> Plan:
        """The kernels of a graph; a body that is called several times is fused once."""
        if graph not in self.plans:
            _own_outputs(graph)
            speculative = self.speculative and self.fused and self.siblings is None
            divide = (lambda groups: self._candidates(graph, groups)) if speculative else None
            plan = fusion.fuse(graph, self.fused, self.lower_group, self.siblings, self.known, divide)
            self.plans[graph] = plan
            self.merges += plan.merges
            self.cuts += plan.cuts
        return self.plans[graph]

    def _candidates(self, graph: Graph, groups: list[Group]) -> list[Group]:
        """Kernels whose product may be faster divided."""
        held = graph is self.graph and len(groups) <= MOST_OF_A_BLOCK
        return division.candidates(groups, self.scope, self.chip, MOST_OF_A_BLOCK if held else None)

    def _claim_results(
        self, graph: Graph, plan: Plan, buffers: dict[Value, int], targets: Sequence[int | None]
    ) -> dict[Value, int]:
        """Puts results that have a target there; returns the stored values behind the others with their output numbers."""
        owners: dict[Value, int] = {}
        for k, (value, target) in enumerate(zip(graph.outputs, targets, strict=True)):
            root = value
            while root in plan.aliases:
                root = plan.aliases[root]
            assert root not in buffers and root not in owners
            if target is None:
                owners[root] = k
            else:
                buffers[root] = target
        return owners

    def find(self, value: Value, plan: Plan, buffers: dict[Value, int]) -> int:
        """The buffer of a stored value, an alias, or a constant."""
        found = buffers.get(value)
        if found is not None:
            return found
        if value in plan.aliases:
            source = self.find(plan.aliases[value], plan, buffers)
            b = self.buffers[source]
            owner = source if b.alias is None else b.alias
            self.buffers.append(
                Buffer(
                    b.space,
                    b.dtype,
                    b.elements,
                    b.offset,
                    self.regs(value.shape),
                    b.constant,
                    b.input,
                    None,
                    value.name,
                    owner,
                )
            )
            buffers[value] = len(self.buffers) - 1
            return buffers[value]
        if value.producer is not None and value.producer.op == "constant":
            buffers[value] = self.constant(value.producer)
            return buffers[value]
        raise AssertionError(f"{value!r} has no buffer")

    def lower_group(
        self, nodes: list[Node], outputs: list[Value], axes: Axes, layout: Layout, stored: set[Value], places: Places
    ) -> Lowered:
        """Code of a group and the bytes of unified buffer it uses. Raises ``Refusal``."""
        body = Lowering(axes, layout, outputs, stored, self.scope, places).run()
        if layout.sharing is Sharing.SUM:
            body = division.divided(body)
        name = _kernel_name(nodes)
        structure = Structure(body, layout.loops, name, layout.sharing)
        found = self.finished.get(structure.key)
        if found is not None:
            return found.again(structure, layout.loops)
        body, used = self._plan(body, layout)
        ordered = sync.insert(body, layout.loops)
        if layout.sharing is Sharing.TILES:
            ordered = order.swizzled(ordered, layout.loops, self.chip, self.scope)
        else:
            division.share(ordered, layout.sharing, self.chip)
        code = assemble(ordered, name)
        self.finished[structure.key] = Finished.of(code, structure, used, layout.loops)
        return Lowered(code, used)

    def _plan(self, body: Body, layout: Layout) -> tuple[Body, int]:
        """The body with places in local memory, bfloat16 chains in float32 if there is room for them, and the bytes that it uses."""
        wide = precision.keep_wide(body)
        if wide is not None:
            try:
                return wide, local_memory.plan(wide, layout.loops, self.chip)
            except Refusal:
                pass
        return body, local_memory.plan(body, layout.loops, self.chip)

    def _decisions(self, graph: Graph, plan: Plan) -> dict[Group, Decision]:
        """Where the parts of speculative merges are run instead. A program of few kernels, such as a decoder block, is held to
        ``MOST_OF_A_BLOCK``: what gains most comes first."""
        if self.speculation is None:
            return {}
        found: dict[Group, Decision] = {}
        count = 0
        for group in plan.steps:
            if isinstance(group, Group) and group.apart:
                found[group] = self._decide(group, self.speculation)
            count += len(group.apart) if group in found and _form(group) is SPECULATIVE else 1
        if graph is not self.graph or count > MOST_OF_A_BLOCK:
            return found
        more = [group for group in found if _form(group) is not SPECULATIVE and found[group].apart is not False]
        for group in sorted(more, key=lambda group: -found[group].gain):
            count += len(group.apart) - 1
            if count > MOST_OF_A_BLOCK:
                count -= len(group.apart) - 1
                reason = f"{found[group].reason}, but apart the program has more than {MOST_OF_A_BLOCK} kernels"
                found[group] = replace(found[group], apart=False, reason=reason)
        return found

    def _decide(self, group: Group, speculation: Speculation) -> Decision:
        """Where the kernels of one group are run instead of it."""
        assert group.layout is not None
        rows = rows_of([loop.extent for loop in group.layout.outer()])
        whole, codes, rule = group.code.code, [part.code.code for part in group.apart], _form(group)
        if rule is DIVIDED:
            return speculation.divide(rows, division.summands(group), whole, codes, rule.patience, list(self.makers))
        lengths = row_lengths(group) if rule is SPECULATIVE else [1]
        if len(lengths) > 1:
            return Decision(True, "rows of several lengths are reduced")
        return speculation.decide(rows, whole, codes, rule.patience, list(self.makers), lengths[0])

    def forms(self, group: Group, found: Decision | None, plan: Plan, buffers: dict[Value, int]) -> list[Step]:
        """The step of a group; the kernels that it is made of instead, or both forms, where that is faster at some sizes."""
        if found is None or found.apart is False:
            if found is not None:
                self._note(group, found.reason)
            return [self.kernel(group, plan, buffers)]
        where = None if found.apart is True else lower_relation(found.apart, self.code, self.env)
        for value in dict.fromkeys(v for part in group.apart for v in part.stores):
            memory = plan.aliases.get(value, value)
            if memory not in buffers:
                buffers[memory] = self.buffer(memory, TEMP, where)
        parts = [self.kernel(part, plan, buffers) for part in group.apart]
        if where is None:
            self._note(group, found.reason)
            return list(parts)
        merged = self.kernel(group, plan, buffers)
        choice = self.choices.setdefault(where, len(self.choices))
        said = {kernel["name"]: kernel for kernel in self.kernels}
        forms = {"choice": choice, "where": found.where or str(found.apart), "reason": found.reason}
        said[merged.name]["apart"] = {**forms, "kernels": [said[part.name] for part in parts]}
        return [replace(merged, choice=choice), *(replace(part, choice=choice, alternative=1) for part in parts)]

    def _note(self, group: Group, reason: str) -> None:
        """Records why a speculative merge has one form only."""
        self.decided.append({"rule": _form(group).name, "kernel": _kernel_name(group.nodes), "reason": reason})

    def kernel(self, group: Group, plan: Plan, buffers: dict[Value, int]) -> KernelStep:
        """Code of one group as a step."""
        assert group.axes is not None and group.layout is not None
        code, used = group.code.code, group.code.used
        ops = [n.op for n in group.axes.computed if n.op not in ("constant", "broadcast", "iota", "dim")]
        name = _kernel_name(group.nodes)
        number = self.template(code)
        step = KernelStep(
            number,
            self.regs(code.params),
            tuple(self.find(v, plan, buffers) for v in code.buffers),
            f"{name}_{len(self.kernels)}",
        )
        stored = [b for v, b in zip(code.buffers, step.buffers, strict=True) if v in group.stores]
        self.memory.kernel(step.name, step.buffers, stored)
        self.kernels.append(
            {
                "name": step.name,
                "template": number,
                "ops": ops or [n.op for n in group.nodes],  # of a copy, none is computed
                "origin": list(dict.fromkeys(str(n.origin) for n in group.nodes if str(n.origin))),
                "outputs": [f"{v.name}: {v.dtype}[{', '.join(map(str, v.shape))}]" for v in group.outputs],
                "loops": [
                    f"{'reduce' if x.stage else 'parallel'} {x.extent} in tiles of {x.tile}" for x in group.layout.loops
                ],
                "local_bytes": used,
                "facts": group.facts,
            }
        )
        return step

    def template(self, code: Assembled) -> int:
        """The number of a template; equal ones are stored once."""
        t = code.template
        key = (t.words.tobytes(), t.patches, t.relocs, t.n_params, t.n_buffers)
        if key not in self.template_index:
            self.template_index[key] = len(self.templates)
            self.templates.append(t)
        return self.template_index[key]

    # --- host and control -----------------------------------------------------------------------------------------------------------
    def alone(self, node: Node, plan: Plan, buffers: dict[Value, int]) -> list[Step]:
        """Steps of a node that is no kernel."""
        inputs = [self.find(v, plan, buffers) for v in node.inputs]
        outputs = [buffers[v] if v in buffers else self.buffer(v, TEMP) for v in node.outputs]
        for value, b in zip(node.outputs, outputs, strict=True):
            buffers[value] = b
        method = {"call": self._call, "cond": self._cond, "while": self._while, "scan": self._scan}.get(node.op)
        if method is not None:
            return method(node, inputs, outputs)
        self.made.update(zip(node.outputs, outputs, strict=True))
        return [HostStep(_host_name(node), self._attrs(node), tuple(inputs), tuple(outputs))]

    def _attrs(self, node: Node) -> dict[str, Any]:
        return {k: self._plain(v) for k, v in node.attrs.items()}

    def _plain(self, value: Any) -> Any:
        if isinstance(value, Expr):
            return {"reg": self.reg(value)}
        if isinstance(value, (tuple, list)):
            return [self._plain(v) for v in value]
        if isinstance(value, Mapping):
            return {k: self._plain(v) for k, v in value.items()}
        if isinstance(value, np.dtype):
            return value.name
        if isinstance(value, np.generic):
            return value.item()
        return value

    def copy(self, value: Value, source: int, target: int) -> list[Step]:
        """Copies one buffer into another through a kernel."""
        graph = Graph(self.scope, name="copy")
        x = graph.add_input(value.shape, value.dtype, value.name)
        graph.outputs = [x]
        return self.emit(graph, {x: source}, [target])

    def _call(self, node: Node, inputs: list[int], outputs: list[int]) -> list[Step]:
        body: Graph = node.attrs["body"]
        return self.emit(body, dict(zip(body.inputs, inputs, strict=True)), outputs)

    def _cond(self, node: Node, inputs: list[int], outputs: list[int]) -> list[Step]:
        branches = []
        for branch in node.attrs["branches"]:
            bound = dict(zip(branch.inputs, inputs[1:], strict=True))
            branches.append(tuple(self.emit(branch, bound, outputs)))
        return [CondStep(inputs[0], tuple(branches))]

    def _while(self, node: Node, inputs: list[int], outputs: list[int]) -> list[Step]:
        nc, nb = node.attrs["cond_consts"], node.attrs["body_consts"]
        cond, body = node.attrs["cond_graph"], node.attrs["body_graph"]
        steps: list[Step] = []
        for value, source, target in zip(node.outputs, inputs[nc + nb :], outputs, strict=True):
            steps += self.copy(value, source, target)
        predicate = self.buffer(cond.outputs[0], TEMP)
        test = self.emit(cond, dict(zip(cond.inputs, [*inputs[:nc], *outputs], strict=True)), [predicate])
        fresh = [self.buffer(v, TEMP) for v in node.outputs]
        run = self.emit(body, dict(zip(body.inputs, [*inputs[nc : nc + nb], *outputs], strict=True)), fresh)
        for value, source, target in zip(node.outputs, fresh, outputs, strict=True):
            run += self.copy(value, source, target)
        return [*steps, WhileStep(tuple(test), predicate, tuple(run))]

    def _scan(self, node: Node, inputs: list[int], outputs: list[int]) -> list[Step]:
        n_consts, n_carry, body = node.attrs["num_consts"], node.attrs["num_carry"], node.attrs["body"]
        length = node.attrs["length"]
        consts, first, xs = inputs[:n_consts], inputs[n_consts : n_consts + n_carry], inputs[n_consts + n_carry :]
        steps: list[Step] = []
        for value, source, target in zip(node.outputs[:n_carry], first, outputs[:n_carry], strict=True):
            steps += self.copy(value, source, target)
        counter = self.buffer(Value((), np.dtype(np.int32), "i"), TEMP)
        run: list[Step] = []
        rows = []
        for k, source in enumerate(xs):
            x, row = node.inputs[n_consts + n_carry + k], body.inputs[n_consts + n_carry + k]
            rows.append(self.buffer(row, TEMP))
            run += self._row(x, row, source, counter, rows[-1])
        fresh = [self.buffer(v, TEMP) for v in body.outputs]
        carry = list(outputs[:n_carry])
        run += self.emit(body, dict(zip(body.inputs, [*consts, *carry, *rows], strict=True)), fresh)
        for value, source, target in zip(node.outputs[:n_carry], fresh, carry, strict=False):
            run += self.copy(value, source, target)
        for value, row, source, target in zip(
            node.outputs[n_carry:], body.outputs[n_carry:], fresh[n_carry:], outputs[n_carry:], strict=True
        ):
            run += self._put_row(value, row, source, counter, target)
        return [*steps, ForStep(self.reg(length), counter, tuple(run), bool(node.attrs["reverse"]))]

    def _row(self, x: Value, row: Value, source: int, counter: int, target: int) -> list[Step]:
        """``row = x[i]``."""
        graph = Graph(self.scope, name="row")
        a, i = graph.add_input(x.shape, x.dtype, "x"), graph.add_input((), np.int32, "i")
        zero = graph.constant(0, np.int32)
        piece = graph.new_value(
            (1, *x.shape[1:]), x.dtype
        )  # not by the shape rule: the body does not run where there is no row
        starts = (i, *[zero] * (x.rank - 1))
        piece.producer = Node("dynamic_slice", (a, *starts), (piece,), {"sizes": piece.shape})
        graph.nodes.append(piece.producer)
        graph.outputs = [graph.add("reshape", piece, shape=row.shape)]
        return self.emit(graph, {a: source, i: counter}, [target])

    def _put_row(self, value: Value, row: Value, source: int, counter: int, target: int) -> list[Step]:
        """``value[i] = row``, in place."""
        graph = Graph(self.scope, name="put_row")
        a, r = graph.add_input(value.shape, value.dtype, "y"), graph.add_input(row.shape, row.dtype, "row")
        i, zero = graph.add_input((), np.int32, "i"), graph.constant(0, np.int32)
        update = graph.add("reshape", r, shape=(1, *row.shape))
        result = graph.new_value(value.shape, value.dtype)
        result.producer = Node("dynamic_update_slice", (a, update, i, *[zero] * (value.rank - 1)), (result,))
        graph.nodes.append(result.producer)
        graph.outputs = [result]
        return self.emit(graph, {a: target, r: source, i: counter}, [target])

    # --- the program ----------------------------------------------------------------------------------------------------------------
    def build(self) -> Program:
        """The whole program."""
        graph = self.graph
        bound: dict[Value, int] = {}
        for k, value in enumerate(graph.inputs):
            fixed = all(isinstance(d, int) for d in value.shape)
            bound[value] = self.buffer(value, PINNED if fixed else INPUT, input=k)
        outputs = list(graph.outputs)
        emitted = self.emit(graph, bound, [None] * len(outputs))
        uses = Uses(self.buffers, lambda step: self.memory.stores[step.name])
        ordered, crossings = host_schedule.arrange(emitted, uses, movable=not self.makers)
        steps, stages = stacking.arrange(ordered, uses) if self.stacked else (ordered, ())
        data_sizes = tuple(
            DataSize(self.made[value], axis, self.reg(self.tops[name])) for name, (value, axis) in self.makers.items()
        )
        checks = tuple(Check(lower_relation(c.rel, self.code, self.env), c.text, c.origin) for c in self.scope.checks)
        inputs = tuple(self.spec(v) for v in graph.inputs)
        outs = tuple(self.spec(v) for v in outputs)
        solve_code, solved = self._solve_code()
        buffers, arenas = self.memory.finish(self.buffers, steps, stages)
        return Program(
            symbols=tuple(self._symbol(name) for name in self.symbols),
            inputs=inputs,
            outputs=outs,
            solve=solve_code,
            solved=solved,
            code=self.code.finish(),
            checks=checks,
            templates=tuple(self.templates),
            buffers=tuple(buffers),
            steps=steps,
            constants=tuple(self.constants),
            arena_rows=dict(sorted(arenas.items())),
            data_sizes=data_sizes,
            chip=self.chip.name,
            stages=stages,
            choices=tuple(Choice(reg, 2) for reg in self.choices),
            debug={
                "kernels": self._in_order(steps),
                "merges": self.merges,
                "cuts": self.cuts,
                "constraints": list(self.scope.constraints),
                "facts": [str(f) for f in self.scope.facts],
                "checks": [str(c) for c in self.scope.checks],
                "shared": self.memory.shared,
                "crossings": crossings,
                "speculation": self.decided,
            },
        )

    def _in_order(self, steps: Sequence[Step]) -> list[dict[str, Any]]:
        """What is said about the kernels, in the order of the steps; the parts of merged ones are said with these."""
        said = {kernel["name"]: kernel for kernel in self.kernels}
        return [said[step.name] for step in kernels_of(steps, (0,) * len(self.choices))]

    def spec(self, value: Value) -> TensorSpec:
        return TensorSpec(value.name, value.dtype.name, self.regs(value.shape), tuple(map(str, value.shape)))

    def _symbol(self, name: str) -> Symbol:
        info = self.scope.symbols[name]
        return Symbol(name, info.min, info.max, info.multiple_of, info.remainder, info.origin)

    def _solve_code(self) -> tuple[intcode.IntCode, tuple[Reg, ...]]:
        sizes = [d for v in self.graph.inputs for d in v.shape]
        builder = Builder(len(sizes))
        env = {f"@{i}": i for i in range(len(sizes))}
        solved = tuple(lower(dim, builder, env) for _, dim in self.solution.steps)
        return builder.finish(), solved


def _own_outputs(graph: Graph) -> None:
    """Gives every result memory of its own: inputs, constants and repeated results are copied by a reshape to their own shape."""
    seen: set[Value] = set()
    for k, value in enumerate(graph.outputs):
        root = value
        while root.producer is not None and root.producer.op == "reshape":
            root = root.producer.inputs[0]
        borrowed = (
            root.producer is None
            or root.producer.op == "constant"
            or root in seen
            or root in graph.outputs[:k]
            or (root is not value and root in graph.outputs)
        )
        if borrowed:
            node = graph.make_node("reshape", [value], {"shape": value.shape})
            node.attrs["copy"] = True
            graph.nodes.append(node)
            graph.outputs[k] = node.output
            node.output.name = value.name
        seen.add(root)


def _form(group: Group) -> Rule:
    """Why a group has a second form: the merge that made it, or that its product can be divided."""
    divided = any(part.sharing is Sharing.SUM for part in group.apart)
    assert divided or group.rule is not None
    return DIVIDED if divided or group.rule is None else group.rule


def _kernel_name(nodes: list[Node]) -> str:
    heavy = [n.op for n in nodes if n.op == "dot" or n.op.startswith("reduce_")]
    names = list(dict.fromkeys(heavy or [n.op for n in nodes]))
    return "_".join(names[:4])


def _host_name(node: Node) -> str:
    from graph_kernel.ops import OPS

    return OPS[node.op].host or node.op


def compile_graph(graph: Graph, options: Mapping[str, Any] | None = None) -> Program:
    """Compiles an optimised graph. Options: ``chip`` (a name in configs/npu or a path), ``fusion`` (False: one kernel a node),
    ``siblings`` (a ``fuse.Siblings``: which groups to make one kernel though neither reads the other),
    ``stacking`` (False: every kernel runs alone), ``speculation`` (False: no part of the program has two forms),
    ``clock`` (makes the timing model of a chip, ``vm.timing.Stopwatch``; None: no speculation).

    Raises ``CompileError`` where a node has neither a kernel form nor a host function.
    """
    options = dict(options or {})
    chip = Chip.load(options.get("chip", "910B1"))
    try:
        fused, stacked, speculative = (bool(options.get(k, True)) for k in ("fusion", "stacking", "speculation"))
        clock = options.get("clock") if speculative else None
        return ProgramBuilder(graph, chip, fused, options.get("siblings"), stacked, clock).build()
    except fusion.Refusal as refusal:
        raise CompileError(f"an operation has no kernel form: {refusal}") from refusal


__all__ = ["ProgramBuilder", "UnsupportedOp", "compile_graph"]
