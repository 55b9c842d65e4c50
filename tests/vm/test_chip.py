"""Chip descriptions: the figures that come with DVM, and what a wrong file says."""

from __future__ import annotations

import subprocess
import sys
import zipfile

import pytest

from vm.chip import Chip
from vm.errors import DvmError


def test_the_chips_that_come_along() -> None:
    assert Chip.names() == ("910B1", "910B2", "910B3", "910B4")
    for name, cubes, mhz, hbm, l2 in (
        ("910B1", 25, 1850, 64, 192),
        ("910B2", 24, 1800, 64, 192),
        ("910B3", 20, 1800, 64, 192),
        ("910B4", 20, 1500, 32, 96),
    ):
        chip = Chip.load(name)
        assert chip.name == name and chip is Chip.load(name)
        assert (chip.cube_cores, chip.vector_cores, chip.clock_hz) == (cubes, 2 * cubes, mhz * 10**6)
        assert (chip.hbm_bytes, chip.l2_bytes) == (hbm << 30, l2 << 20)
        assert (chip.ub_bytes, chip.ub_reserved_bytes, chip.block_bytes, chip.events) == (192 << 10, 512, 32, 8)
        assert (chip.l1_bytes, chip.l0a_bytes, chip.l0b_bytes, chip.l0c_bytes) == (
            512 << 10,
            64 << 10,
            64 << 10,
            128 << 10,
        )


def test_peaks_are_the_published_ones() -> None:
    tera = {n: Chip.load(n).cube_flops_per_second() / 1e12 for n in ("910B1", "910B2", "910B4")}
    assert tera == pytest.approx({"910B1": 378.9, "910B2": 353.9, "910B4": 245.8}, abs=0.06)
    assert Chip.load("910B1").hbm_bytes_per_second == pytest.approx(1.48e12)
    assert Chip.load("910B4").hbm_bytes_per_second == pytest.approx(960e9)
    assert 4.9e12 < Chip.load("910B1").l2_read_bytes_per_second < 5.1e12
    assert Chip.load("910B1").cube_k(4) == 4 and Chip.load("910B1").cube_flops_per_second(1) == 2 * tera["910B1"] * 1e12


def test_vector_costs() -> None:
    chip = Chip.load("910B1")
    assert chip.vector_cost("add_float").delay_cycles == 6 and chip.vector_cost("reduce_add").passes == 7
    with pytest.raises(DvmError, match="no vector cost 'frob'; it has add_float"):
        chip.vector_cost("frob")
    with pytest.raises(DvmError, match="operands of 8 bytes"):
        chip.cube_k(8)
    assert hash(chip) == hash(Chip.load("910B1"))


def test_unknown_name_lists_the_known() -> None:
    for name in ("910B9", "_c220", "../x", ""):
        with pytest.raises(DvmError, match="910B1, 910B2, 910B3, 910B4"):
            Chip.load(name)


def test_a_file_of_ones_own(tmp_path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'base = "910B4"\nname = "mine"\n[cores]\ncube = 3\n[vector.costs]\nselect = {bytes_per_cycle = 1, delay_cycles = 2}\n'
    )
    chip = Chip.load(path)
    assert (chip.name, chip.cube_cores, chip.l2_bytes) == ("mine", 3, 96 << 20)
    assert chip.vector_cost("select").bytes_per_cycle == 1 and chip.vector_cost("max").bytes_per_cycle == 256


@pytest.mark.parametrize(
    "text, message",
    [
        ('base = "910B1"\n[memory]\nub_byte = 3', "unknown key memory.ub_byte; did you mean memory.ub_bytes?"),
        ('base = "910B1"\n[memory]\nub_bytes = -3', "memory.ub_bytes must be a positive integer, not -3"),
        ('base = "910B1"\n[memory]\nub_bytes = 1.5', "memory.ub_bytes must be a positive integer, not 1.5"),
        ('base = "910B1"\n[memory]\nub_bytes = true', "memory.ub_bytes must be a positive integer, not True"),
        ('base = "910B1"\n[memory]\nfb_bytes = 3', "memory.fb_bytes must be a list of integers, not 3"),
        ('base = "910B1"\nmemory = 3', "memory must be a table, not 3"),
        ('base = "910B1"\nname = 3', "name must be a text, not 3"),
        (
            'base = "910B1"\n[bandwidth]\nddr_bytes_per_cycle = nan',
            "bandwidth.ddr_bytes_per_cycle must be a positive number, not nan",
        ),
        ('base = "910B1"\n[vector]\ncosts = 3', "vector.costs must be a table"),
        ('base = "910B1"\n[vector.costs]\nmax = {delay_cycles = 1, x = 1}', "unknown key vector.costs.max.x"),
        ('base = "910B7"', "base '910B7' is none of 910B1"),
        ('base = "../../x"', "base '../../x' is none of"),
        ("base = 3", "base 3 is none of"),
        ('name = "x"', "key cores is missing"),
        ('base = "_c220"\nname = "x"', "key cores.cube is missing"),
        ("name = [", "not a TOML file"),
    ],
)
def test_bad_files_name_the_key(tmp_path, text: str, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(DvmError) as caught:
        Chip.load(str(path))
    assert message in str(caught.value) and "bad.toml" in str(caught.value)


def test_missing_and_binary_files(tmp_path) -> None:
    with pytest.raises(DvmError, match="cannot read"):
        Chip.load(tmp_path / "absent.toml")
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(DvmError, match="not a TOML file"):
        Chip.load(tmp_path / "b.toml")


def test_found_inside_a_zip(tmp_path) -> None:
    """As importlib.resources sees an installed package that is no plain directory."""
    from pathlib import Path

    import configs

    archive = tmp_path / "configs.zip"
    root = Path(configs.__file__).parent
    with zipfile.ZipFile(archive, "w") as z:
        for path in [root / "__init__.py", *sorted((root / "npu").glob("*.toml"))]:
            z.write(path, f"configs/{path.relative_to(root)}")
    code = f"import sys; sys.path[:0] = [{str(archive)!r}]; import configs; from vm.chip import Chip; "
    code += "assert '.zip' in configs.__file__; print(Chip.names(), Chip.load('910B2').cube_cores)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root.parent)
    assert done.stdout == "('910B1', '910B2', '910B3', '910B4') 24\n"
