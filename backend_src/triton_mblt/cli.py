"""The command `triton-mblt`. Parses arguments and hands over; heavy parts are imported when their command is chosen.

Exit codes: 0 done, 1 it did not work (a server that does not start, something missing), 2 a wrong call. A user's
mistake is one line on stderr, never a traceback.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from triton_mblt import __version__
from triton_mblt.core.errors import ConfigError, MbltError
from triton_mblt.core.server_settings import ServerSettings
from triton_mblt.core.settings import process_environment


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except ConfigError as error:
        print(f"triton-mblt: {error.message}", file=sys.stderr)
        return 2
    except MbltError as error:
        print(f"triton-mblt: {error.message}", file=sys.stderr)
        return 1
    return code


def _serve(arguments: argparse.Namespace) -> int:
    from triton_mblt.launcher.repo import resolve_model, shipped_repository
    from triton_mblt.launcher.server import serve

    named = arguments.model or process_environment().get("MBLT_MODEL", "")
    model = resolve_model(named) if named else ""
    needs_demo = not model and not arguments.repository
    if needs_demo and arguments.npu == "device":
        raise ConfigError("a device needs a model: --model FOLDER or mobilint/NAME (MODEL=... for make)", param="model")
    repository = Path(arguments.repository).resolve() if arguments.repository else shipped_repository()
    if not repository.is_dir():
        raise ConfigError(f"the repository {repository} is not a folder", param="repository")
    if needs_demo:
        model = str(_ensure_demo())
    return serve(
        ServerSettings(
            repository=repository,
            npu=arguments.npu,
            model=model,
            address=arguments.address,
            http_port=arguments.http_port,
            grpc_port=arguments.grpc_port,
            metrics_port=arguments.metrics_port,
            start_limit_s=arguments.start_limit_s,
            stop_limit_s=arguments.stop_limit_s,
            verbose=arguments.verbose,
        )
    )


def _doctor(arguments: argparse.Namespace) -> int:
    from triton_mblt.launcher.doctor import run

    ports = {name: getattr(arguments, name) for name in ("http_port", "grpc_port", "metrics_port")}
    return run(arguments.npu, arguments.address, ports)


def _key(_arguments: argparse.Namespace) -> int:
    from triton_mblt.launcher import rundir
    from triton_mblt.launcher.command import KEY_HEADER

    running = [run for run in rundir.find() if rundir.is_alive(run)]
    for run in running:
        print(f"server of {run.path}")
        print(f"  lm_control    admin_key {run.admin_key}")
        print(f"  Triton, HTTP  {KEY_HEADER}: {run.route_key}")
        print(f"  Triton, gRPC  triton-grpc-protocol-{KEY_HEADER}: {run.route_key}")
    if not running:
        print("no server of this user runs", file=sys.stderr)
    return 0 if running else 1


def _repo_create(arguments: argparse.Namespace) -> int:
    from triton_mblt.launcher.repo import create, parse_pairs

    settings = create(
        arguments.model, Path(arguments.out), name=arguments.name, settings=parse_pairs(arguments.settings)
    )
    print(f"wrote {arguments.out} for {settings.model}")
    return 0


def _emulate_build(arguments: argparse.Namespace) -> int:
    from triton_mblt.emulator.build import build_package

    folder = build_package(
        getattr(arguments, "from"),
        arguments.out,
        max_batch_size=arguments.max_batch_size,
        max_cache=arguments.max_cache,
        chunk=arguments.chunk,
        logits=arguments.logits,
    )
    print(folder)
    return 0


def _emulate_demo(_arguments: argparse.Namespace) -> int:
    print(_ensure_demo())
    return 0


def _emulate_stats(arguments: argparse.Namespace) -> int:
    from triton_mblt.emulator.stats import read_stats

    print(json.dumps(read_stats(arguments.pid, latest=arguments.latest), indent=2))
    return 0


def _emulate_fault(arguments: argparse.Namespace) -> int:
    try:
        fault = json.loads(arguments.fault)
    except json.JSONDecodeError as error:
        raise ConfigError(f"the fault is not JSON: {error}", param="fault") from error
    if not isinstance(fault, dict):
        raise ConfigError("the fault must be a JSON object", param="fault")
    from triton_mblt.emulator.faults import inject

    print(inject(arguments.pid, fault))
    return 0


def _ensure_demo() -> Path:
    """The demo package in the user's cache folder, built when it is not there."""
    from triton_mblt.emulator.demo import ensure_demo

    env = process_environment()
    cache = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "triton-mblt"
    print(f"demo model in {cache} (built when it is not there, about 15 s)", file=sys.stderr)
    return ensure_demo(cache)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="triton-mblt", description="Serve language models on Mobilint NPUs with Triton."
    )
    parser.add_argument("--version", action="version", version=f"triton-mblt {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="start tritonserver and stay in the foreground")
    _add_place(serve, npu_required=True)
    serve.add_argument(
        "--model", default="", help="package folder or mobilint/... id (default: MBLT_MODEL; emulated: the demo)"
    )
    serve.add_argument("--repository", default="", help="a repository of your own (triton-mblt repo create)")
    serve.add_argument("--start-limit-s", type=float, default=900.0, help="give up when not ready by then")
    serve.add_argument("--stop-limit-s", type=float, default=4.0, help="Ctrl-C to the end of the last process")
    serve.add_argument("-v", "--verbose", action="store_true", help="show all that tritonserver prints")
    serve.set_defaults(run=_serve)

    doctor = commands.add_parser("doctor", help="say in plain words what this machine lacks")
    _add_place(doctor, npu_required=False)
    doctor.set_defaults(run=_doctor)

    key = commands.add_parser("key", help="show the administrator's keys of the running servers of this user")
    key.set_defaults(run=_key)

    repo = commands.add_parser("repo", help="model repositories").add_subparsers(required=True, metavar="COMMAND")
    create = repo.add_parser("create", help="write a repository for another model")
    create.add_argument("--model", required=True, help="package folder or mobilint/... id")
    create.add_argument("--out", required=True, help="a new folder")
    create.add_argument("--name", default="", help="the name under which the model is shown")
    create.add_argument("settings", nargs="*", metavar="key=value", help="settings for lm/1/model.json")
    create.set_defaults(run=_repo_create)

    _add_emulate(commands.add_parser("emulate", help="the emulated NPU"))
    return parser


def _add_place(parser: argparse.ArgumentParser, *, npu_required: bool) -> None:
    which = "never chosen silently" if npu_required else "what is to be served with (default: tell about both)"
    parser.add_argument("--npu", required=npu_required, choices=("device", "emulated"), help=which)
    parser.add_argument("--address", default="127.0.0.1", help="where to listen; 0.0.0.0 opens it to other machines")
    parser.add_argument("--http-port", type=int, default=8000)
    parser.add_argument("--grpc-port", type=int, default=8001)
    parser.add_argument("--metrics-port", type=int, default=8002)


def _add_emulate(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    build = commands.add_parser("build", help="make a package for the emulated NPU")
    build.add_argument("--from", required=True, help="a Hugging Face checkpoint folder or a GGUF file")
    build.add_argument("--out", required=True, help="the package folder to write")
    build.add_argument("--max-batch-size", type=int, default=1, help="cache slots; more than 1 makes a batch artefact")
    build.add_argument("--max-cache", type=int, default=None, help="tokens per slot (default: the model's positions)")
    build.add_argument("--chunk", type=int, default=128, help="most tokens of one row in one call")
    build.add_argument("--logits", choices=("last", "all"), default="last", help="rows of logits that a call returns")
    build.set_defaults(run=_emulate_build)

    demo = commands.add_parser("demo", help="build the demo package when it is missing, and print its folder")
    demo.set_defaults(run=_emulate_demo)

    stats = commands.add_parser("stats", help="counters of running emulated NPUs, as JSON")
    stats.add_argument("--pid", type=int, default=None, help="one NPU worker (default: all)")
    stats.add_argument("--latest", type=int, default=0, help="show this many of the latest calls too")
    stats.set_defaults(run=_emulate_stats)

    fault = commands.add_parser("fault", help="make a running emulated NPU fail")
    fault.add_argument("--pid", type=int, required=True, help="the NPU worker")
    fault.add_argument("fault", help='a JSON object, for example \'{"kind": "raise", "call": 5}\'')
    fault.set_defaults(run=_emulate_fault)
