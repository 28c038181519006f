"""Checks configurations of the Triton Inference Server against its own schema, as its client's
package carries it.

Usage: python3 triton_config.py CONFIG.pbtxt...   (needs `pip install tritonclient protobuf`; ends
with 77 without them)
"""

import importlib.util
import pathlib
import sys

SKIPPED = 77


def schema():
    """The messages of model_config.proto, without the client around them, which would want gRPC."""
    client = importlib.util.find_spec("tritonclient")
    if client is None or importlib.util.find_spec("google.protobuf") is None:
        return None
    file = pathlib.Path(client.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    messages = schema()
    if messages is None:
        print("SKIPPED: tritonclient and protobuf are not installed")
        return SKIPPED
    from google.protobuf import text_format

    for path in sys.argv[1:]:
        try:
            config = text_format.Parse(pathlib.Path(path).read_text(), messages.ModelConfig())
        except text_format.ParseError as error:
            print(f"{path}: {error}")
            return 1
        warm = [warm_up.name for warm_up in config.model_warmup]
        print(
            f"{config.name}: at most {config.max_batch_size}, {len(config.input)} inputs, "
            f"{len(config.output)} outputs, warm {warm}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
