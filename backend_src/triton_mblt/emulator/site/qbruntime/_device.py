"""Which emulated devices are plugged in, and how a caller's name for one is resolved."""

from __future__ import annotations

from ._errors import failure
from ._options import DEVICE_NAMES, options

# What a name stands for. "regulus" means the boards inside the machine, "regulus-usb" those on USB.
_ALIASES: dict[str, tuple[str, ...]] = {
    "auto": DEVICE_NAMES,
    "aries": ("aries-rb",),
    "regulus": ("regulus-ra", "regulus-rb"),
    "regulus-usb": ("regulus-ra-usb", "regulus-rb-usb"),
}


def get_available_devices() -> list[str]:
    """Concrete names of the devices that are present, each once."""
    return [name for name, _ in options().devices]


def get_available_device_numbers(device_name: str = "auto") -> list[int]:
    """Numbers of the devices that `device_name` means; empty when it means none or more than one kind."""
    if not isinstance(device_name, str):
        raise TypeError(f"device_name must be a str, got {type(device_name).__name__}")
    present = _candidates(device_name.lower())
    return list(range(present[0][1])) if len(present) == 1 else []


def resolve(device_name: str, dev_no: int) -> str:
    """The concrete name of the device to open.

    Errors: Acc_UnknownDevice, Acc_AmbiguousDevice; Acc_DeviceNotFound for a missing device under an alias,
    Driver_NotInitialized for one under its concrete name (as the real runtime has it).
    """
    name = device_name.lower()
    if name not in _ALIASES and name not in DEVICE_NAMES:
        raise failure("Acc_UnknownDevice", f'unknown device "{device_name}"; supported: {[*_ALIASES, *DEVICE_NAMES]}')
    present = _candidates(name)
    if name in _ALIASES and not present:
        raise failure("Acc_DeviceNotFound", f'no NPU device for "{device_name}"')
    if len(present) > 1:
        raise failure("Acc_AmbiguousDevice", f'"{device_name}" could be any of {[found for found, _ in present]}')
    if not present or not 0 <= dev_no < present[0][1]:
        status = "Acc_DeviceNotFound" if name in _ALIASES else "Driver_NotInitialized"
        raise failure(status, f"device {device_name} #{dev_no} not found")
    return present[0][0]


def _candidates(name: str) -> list[tuple[str, int]]:
    wanted = _ALIASES.get(name, (name,))
    return [(found, count) for found, count in options().devices if found in wanted]
