import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def test_imports_point_one_way():
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([str(lint)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("module", ["scheduler_service.__main__", "spearhead.client", "spearhead.cli"])
def test_torch_is_not_loaded_by(module):
    assert python(f"import sys, {module}; print('torch' in sys.modules)").strip() == "False"


def test_the_distribution_that_would_shadow_our_kernels_is_absent():
    with pytest.raises(PackageNotFoundError):
        version("kernels")


def test_no_folder_under_tests_is_a_package_that_could_shadow_ours():
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_a_kernel_file_is_never_named_like_the_library_it_imports():
    assert [path for name in ("triton.py", "torch.py") for path in (ROOT / "kernels").rglob(name)] == []
