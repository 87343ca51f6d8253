"""Which release of the vendor's runtime this package stands in for."""

__all__ = ["__git_version__", "__product__", "__vendor__", "__version__"]

__version__: str = "v1.5.0"
__git_version__: str = "emulated"
__vendor__: str = ""
__product__: str = ""
