#!/usr/bin/python3
"""A small, whole scheduler for Berth's nodes: attaches a volume, publishes it, moves it to another node, releases it.

Needs Debian's python3-grpcio and python3-protobuf, and the modules that protoc makes of Berth's protos:

  protoc -I /usr/include/berth --python_out=gen --grpc_python_out=gen \\
    --plugin=protoc-gen-grpc_python=$(command -v grpc_python_plugin) \\
    berth/v1/node.proto berth/v1/scheduler.proto csi/csi.proto
  PYTHONPATH=gen ./scheduler.py --listen unix:/run/scheduler.sock --plugin ceph --volume vol-1 node-1 node-2

It keeps what it knows in memory. So it takes a new lease epoch whenever it starts, and releases the volume everywhere
before it begins. docs/protocol.md tells the rules.
"""
import argparse
import concurrent.futures
import queue
import sys
import threading
import time

import grpc
from berth.v1 import node_pb2
from berth.v1 import scheduler_pb2 as pb
from berth.v1 import scheduler_pb2_grpc
from csi import csi_pb2 as csi

HEARTBEAT_SECONDS, SILENCE_SECONDS, LEASE_SECONDS = 1, 5, 20
WRITER = csi.VolumeCapability(
    mount={}, access_mode={"mode": csi.VolumeCapability.AccessMode.SINGLE_NODE_WRITER})


class Node:
    """What is known of one node, whether it is connected or not."""

    def __init__(self):
        self.instance_id, self.outgoing = None, None  # of its stream; None: it is not connected
        self.plugins = {}  # their newest state, as the node told it
        self.asked, self.results = {}, {}  # operations without a result, and results, by id


class Scheduler(scheduler_pb2_grpc.SchedulerLinkServicer):
    def __init__(self, tls):
        self.tls, self.nodes, self.changed = tls, {}, threading.Condition()
        self.epoch = time.time_ns() // 1_000_000  # milliseconds: above that of every earlier run, and so are the ids
        self.last_id = self.epoch * 1000

    # --- The stream: one for each node, on threads of gRPC's ---

    def Connect(self, messages, context):
        hello = next(messages).hello
        outgoing = queue.Queue()
        outgoing.put(pb.SchedulerMessage(welcome=pb.Welcome(
            protocol={"major": 1}, cluster_id="example", heartbeat_interval={"seconds": HEARTBEAT_SECONDS})))
        with self.changed:
            refusal = self.why_not(hello, context)
            if refusal:
                context.abort(*refusal)
            node = self.nodes.setdefault(hello.node_id, Node())
            if node.outgoing:
                node.outgoing.put(None)  # The same node again: its old stream is dead, though nobody said so.
            node.instance_id, node.outgoing = hello.instance_id, outgoing
        threading.Thread(target=self.read, args=(node, messages, outgoing), daemon=True).start()
        try:
            yield from iter(lambda: outgoing.get(timeout=SILENCE_SECONDS), None)
        except queue.Empty:
            pass  # There was no heartbeat to answer for so long: the stream is dead. It says nothing of volumes.

    def why_not(self, hello, context):
        names = context.auth_context().get("x509_subject_alternative_name", [])
        if self.tls and hello.node_id.encode() not in names:
            return grpc.StatusCode.PERMISSION_DENIED, "the certificate is not that of " + hello.node_id
        if hello.protocol.major != 1:
            return grpc.StatusCode.FAILED_PRECONDITION, "this scheduler speaks version 1"
        if hello.lease_epoch > self.epoch:
            return grpc.StatusCode.UNAVAILABLE, "another scheduler has taken over"
        node = self.nodes.get(hello.node_id)
        if node and node.outgoing and node.instance_id != hello.instance_id:
            return grpc.StatusCode.ALREADY_EXISTS, "another node goes by this name, and is connected"
        return None

    def read(self, node, messages, outgoing):
        try:
            for message in messages:
                with self.changed:
                    if node.outgoing is not outgoing:
                        break  # There is a newer stream, and what this one still says is old.
                    self.take(node, message, outgoing)
                    self.changed.notify_all()
        except grpc.RpcError:
            pass  # The stream has ended. What the node holds it holds still.
        with self.changed:
            if node.outgoing is outgoing:
                node.outgoing = None
        outgoing.put(None)

    def take(self, node, message, outgoing):
        def say(**kind):
            outgoing.put(pb.SchedulerMessage(**kind))

        kind = message.WhichOneof("message")
        if kind == "heartbeat":
            lease = pb.Lease(epoch=self.epoch, duration={"seconds": LEASE_SECONDS})
            say(heartbeat_answer=pb.HeartbeatAnswer(number=message.heartbeat.number, lease=lease))
            for operation in node.asked.values():  # Asking again is free: an id is one operation.
                say(operation=operation)
        elif kind == "state":
            self.take_state(node, message.state, say)
        elif kind == "result":
            if message.result.refusal in (pb.LEASE_EPOCH, pb.LEASE_NOT_VALID, pb.TOO_MANY):
                return  # Nothing was begun, and it may be soon: it is asked for again with the next heartbeat.
            if node.asked.pop(message.result.id, None):  # Else it was heard before, or by an earlier run.
                node.results[message.result.id] = message.result
            say(acknowledge=pb.Acknowledge(operation_ids=[message.result.id],
                                           settled_below=min(node.asked, default=self.last_id + 1)))
        elif kind == "ask":
            say(answer=pb.Answer(number=message.ask.number, code=grpc.StatusCode.UNIMPLEMENTED.value[0],
                                 message="this scheduler is an example"))

    def take_state(self, node, state, say):
        """Of what a node tells, what this scheduler needs. Another one would keep the volumes, too."""
        if state.full:
            node.plugins = {}
        for thing in state.objects:
            kind = thing.WhichOneof("object")
            if kind == "plugin":
                node.plugins[thing.plugin.id] = thing.plugin
            elif kind == "removed":
                node.plugins.pop(thing.removed.plugin_id, None)
            elif kind == "ended_consumer":  # The node releases its volumes; main() detaches them in its time.
                say(acknowledge=pb.Acknowledge(ended_consumers=[thing.ended_consumer.number]))
            elif kind == "given_up" and thing.given_up.progress == pb.GivenUp.RELEASED:
                say(acknowledge=pb.Acknowledge(given_up=[thing.given_up.number]))

    # --- What is done with it ---

    def ask(self, name, **kind):
        """The result of one operation, which is asked for until there is one, across any break of the link."""
        with self.changed:
            self.last_id += 1
            node, operation = self.nodes[name], pb.Operation(id=self.last_id, lease_epoch=self.epoch, **kind)
            node.asked[operation.id] = operation
            if node.outgoing:
                node.outgoing.put(pb.SchedulerMessage(operation=operation))
            self.changed.wait_for(lambda: operation.id in node.results)
            return node.results.pop(operation.id)

    def run(self, name, **kind):
        """The same until it is done: what did not happen, or may have happened, is asked for anew."""
        while True:
            result = self.ask(name, **kind)
            print(name, *kind, pb.Outcome.Name(result.outcome), result.message, flush=True)
            if result.outcome == pb.OUTCOME_DONE:
                return result
            if result.outcome in (pb.OUTCOME_REFUSED, pb.OUTCOME_FAILED):
                raise RuntimeError(f"{name}: {result.message}")
            with self.changed:
                self.changed.wait(HEARTBEAT_SECONDS)  # Something is heard, or a moment passes.

    def storage(self, name, plugin):
        """What the plugin there says of itself: whether it must attach, and what the storage calls the node."""
        def there():
            known = self.nodes[name].plugins.get(plugin) if name in self.nodes else None
            return known.fingerprint if known and known.registered else None

        with self.changed:
            return self.changed.wait_for(there)

    def publish(self, name, plugin, volume, consumer):
        storage = self.storage(name, plugin)
        request = {"plugin_id": plugin, "volume_id": volume, "consumer": consumer,
                   "capability": {"access_mode": node_pb2.SINGLE_NODE_WRITER}}
        if storage.needs_attach:
            attach = csi.ControllerPublishVolumeRequest(
                volume_id=volume, node_id=storage.node_id, volume_capability=WRITER)
            attached = self.run(name, controller={"plugin_id": plugin, "attach": attach}).controller.attach
            request["publish_context"] = {"values": attached.publish_context}
        return self.run(name, publish={"namespace": "example", "request": request}).publish.target_path

    def release(self, name, plugin, volume, consumer):
        """Detaches only once the node has said that it let go. Where it cannot say so, nobody else gets the volume."""
        storage = self.storage(name, plugin)
        request = {"plugin_id": plugin, "volume_id": volume, "consumer": consumer}
        if self.run(name, unpublish={"namespace": "example", "request": request}).unpublish.may_live_on:
            raise RuntimeError(f"{name}: {volume} may still be written to there")
        if storage.needs_attach:
            detach = csi.ControllerUnpublishVolumeRequest(volume_id=volume, node_id=storage.node_id)
            self.run(name, controller={"plugin_id": plugin, "detach": detach})


def move(scheduler, nodes, plugin, volume):
    """The story: the volume is on each of the nodes in turn, and on one at a time."""
    for name in nodes:
        scheduler.release(name, plugin, volume, "web")  # An earlier run may have left it there.
    for name in nodes:
        try:
            print(name, "published at", scheduler.publish(name, plugin, volume, "web"), flush=True)
            sys.stdin.readline()  # Whoever plays with it looks at the mount, and presses Enter.
        finally:
            scheduler.release(name, plugin, volume, "web")
    print("released", flush=True)


def serve(scheduler, args):
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=64))  # One for each node.
    scheduler_pb2_grpc.add_SchedulerLinkServicer_to_server(scheduler, server)
    if args.certificate:
        key, certificate, ca = (open(path, "rb").read() for path in (args.key, args.certificate, args.ca))
        credentials = grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=True)
        port = server.add_secure_port(args.listen, credentials)
    else:
        port = server.add_insecure_port(args.listen)
    server.start()
    print("listening at", args.listen, "port", port, flush=True)
    return server


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--listen", required=True, help="unix:/path, or host:port with --certificate, --key and --ca")
    parser.add_argument("--certificate"), parser.add_argument("--key"), parser.add_argument("--ca")
    parser.add_argument("--plugin", required=True), parser.add_argument("--volume", required=True)
    parser.add_argument("nodes", nargs="+")
    args = parser.parse_args()
    scheduler = Scheduler(tls=bool(args.certificate))
    server = serve(scheduler, args)
    try:
        move(scheduler, args.nodes, args.plugin, args.volume)
    finally:
        server.stop(1).wait()


if __name__ == "__main__":
    main()
