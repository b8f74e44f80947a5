"""The package tofu_tf and its console command tofu-tf."""

from setuptools import find_packages, setup

# Private TensorFlow API is used in places (tests/test_layering.py lists them), so the minor version is fixed.
EXAMPLES = ["scikit-learn"]
TEST = ["pytest>=9", "pytest-xdist", "hypothesis", "ruff", "mypy", *EXAMPLES]

setup(
    name="tofu_tf",
    version="0.1.0",
    description="Trains an unedited Keras model partitioned over k devices: Tofu (EuroSys 2019) for TensorFlow.",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["tofu_tf", "tofu_tf.*"]),
    package_data={"tofu_tf": ["py.typed"]},
    install_requires=[
        "tensorflow==2.21.*",
        "tf_keras==2.21.*",
        "numpy",
        "scipy",
        "opt_einsum",
        "rich",
        "absl-py",
    ],
    extras_require={"test": TEST, "examples": EXAMPLES},
    entry_points={"console_scripts": ["tofu-tf = tofu_tf.cli.main:run"]},
)
