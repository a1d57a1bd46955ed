"""A reader of the node's API in Python: many small calls while one watch of events stays open.

python_client.py SOCKET GID: calls as the user nobody with the group GID. Prints "called" after its calls, then
waits for the event plugin.stopped on the watch. Ends with 0 only if every call was answered and the watch was
never cut.
"""
import os
import sys
import threading

import grpc

from berth.v1 import node_pb2, node_pb2_grpc

CALLS = 2000


def main():
    socket, group = sys.argv[1], int(sys.argv[2])
    os.setgroups([])
    os.setgid(group)
    os.setuid(65534)
    with grpc.insecure_channel("unix:" + socket) as channel:
        stub = node_pb2_grpc.NodeStub(channel)
        events = stub.WatchEvents(node_pb2.WatchEventsRequest(follow=True), timeout=120)
        stopped = threading.Event()
        failure = []

        def watch():
            try:
                for response in events:
                    if response.event.type == "plugin.stopped":
                        stopped.set()
                        return
            except grpc.RpcError as error:
                failure.append(error)
            stopped.set()

        threading.Thread(target=watch, daemon=True).start()
        for _ in range(CALLS):
            stub.GetStatus(node_pb2.GetStatusRequest(), timeout=60)
        print("called", flush=True)
        if not stopped.wait(60):
            sys.exit("the event did not come")
        if failure:
            sys.exit(f"the watch was cut: {failure[0]}")


main()
