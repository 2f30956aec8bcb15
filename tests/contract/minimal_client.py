"""Streams text with nothing but the generated stubs: minimal_client.py ADDRESS PROMPT."""

import sys

import grpc

from spearhead.v1 import scheduler_pb2, scheduler_pb2_grpc


def main(address: str, prompt: str) -> None:
    with grpc.insecure_channel(address) as channel:
        scheduler = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        request = scheduler_pb2.GenerateRequest(prompt=prompt)
        request.sampling.max_tokens = 32
        for response in scheduler.Generate(request, timeout=120):
            print(response.delta.text, end="", flush=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
