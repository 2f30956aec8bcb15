from spearhead.cli.checks.installation import check_python, check_requirements, check_shadowing


def findings(declared, installed):
    return {f.subject: f for f in check_requirements(declared, installed.get)}


def test_a_version_out_of_range_is_wrong_and_names_the_command():
    found = findings(["grpcio>=1.80", "numpy>=1.26"], {"grpcio": "1.70.0", "numpy": "2.1.0"})
    assert not found["grpcio"].ok
    assert found["grpcio"].text == "1.70.0 (needs >=1.80)"
    assert found["grpcio"].remedy == "pip install 'grpcio>=1.80'"
    assert found["numpy"].ok


def test_a_missing_distribution_is_wrong():
    assert findings(["grpcio>=1.80"], {})["grpcio"].text == "not installed (needs >=1.80)"


def test_only_extras_that_serving_needs_are_required():
    found = findings(['torch>=2 ; extra == "models"', 'pytest>=8 ; extra == "dev"'], {})
    assert list(found) == ["torch"]


def test_the_distribution_that_shadows_our_kernels_is_wrong():
    assert check_shadowing({}.get).ok
    shadowed = check_shadowing({"kernels": "0.11"}.get)
    assert not shadowed.ok
    assert shadowed.remedy == "pip uninstall kernels"


def test_python_outside_the_range_is_wrong():
    assert check_python((3, 12)).ok
    assert not check_python((3, 13)).ok
    assert not check_python((3, 10)).ok
