#!/usr/bin/python3
r"""A small, whole scheduler for Berth's nodes: attaches a volume, publishes it, moves it to another node, releases it.

Needs Debian's python3-grpcio and python3-protobuf, and the modules that protoc makes of Berth's protos, for which it
needs protobuf-compiler, protobuf-compiler-grpc and libprotobuf-dev:

  mkdir -p gen
  protoc -I /usr/include/berth --python_out=gen --grpc_python_out=gen \
    --plugin=protoc-gen-grpc_python=$(command -v grpc_python_plugin) \
    berth/v1/values.proto berth/v1/node.proto berth/v1/scheduler.proto csi/csi.proto

  PYTHONPATH=gen ./scheduler.py --listen unix:/run/scheduler.sock --plugin ceph --volume vol-1 node-1 node-2

It keeps what it knows in memory. So it takes a new lease epoch whenever it starts, and releases the volume everywhere
before it begins. docs/protocol.md has the rules.
"""
import argparse
import concurrent.futures
import queue
import sys
import threading
import time

import grpc
from berth.v1 import node_pb2, scheduler_pb2 as pb, scheduler_pb2_grpc
from csi import csi_pb2 as csi

HEARTBEAT_SECONDS, SILENCE_SECONDS, LEASE_SECONDS, LONGEST_PAUSE_SECONDS = 1, 5, 20, 60
WRITER = csi.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"})


class Node:
    """What the scheduler knows about one node, connected or not."""

    def __init__(self):
        self.instance_id, self.outgoing = None, None  # of its stream; None: it is not connected
        self.plugins = {}  # their newest state, by id
        self.asked, self.results = {}, {}  # operations without a result, and results, by id
        self.wanted = set()  # what is published there, or is to be: (plugin, volume, consumer as the node calls it)


class Scheduler(scheduler_pb2_grpc.SchedulerLinkServicer):
    def __init__(self, tls):
        self.tls, self.nodes, self.changed, self.ended = tls, {}, threading.Condition(), threading.Event()
        self.epoch = time.time_ns() // 1_000_000  # milliseconds: higher than in every earlier run, like the ids
        self.last_id = self.epoch * 1000

    # --- The stream: one for each node, on threads of gRPC's ---

    def Connect(self, messages, context):
        hello, outgoing = next(messages).hello, queue.Queue()
        outgoing.put(pb.SchedulerMessage(welcome=pb.Welcome(
            protocol={"major": 1}, cluster_id="example", heartbeat_interval={"seconds": HEARTBEAT_SECONDS},
            lease_epoch=self.epoch)))
        with self.changed:
            self.refuse_an_unknown_node(hello, context)
            node = self.nodes.setdefault(hello.node_id, Node())
            if node.outgoing:
                node.outgoing.put(None)  # The same node again: its old stream is dead.
            node.instance_id, node.outgoing = hello.instance_id, outgoing
        threading.Thread(target=self.read, args=(node, messages, outgoing), daemon=True).start()
        try:
            yield from iter(lambda: outgoing.get(timeout=SILENCE_SECONDS), None)
        except queue.Empty:
            pass  # No heartbeat for so long: the stream is dead. That says nothing about volumes.

    def refuse_an_unknown_node(self, hello, context):
        names = context.auth_context().get("x509_subject_alternative_name", [])
        if self.tls and hello.node_id.encode() not in names:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "the certificate has not the name " + hello.node_id)
        if hello.protocol.major != 1:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this scheduler speaks version 1")
        if hello.lease_epoch > self.epoch:
            context.abort(grpc.StatusCode.UNAVAILABLE, "another scheduler has taken over")
        node = self.nodes.get(hello.node_id)
        if node and node.outgoing and node.instance_id != hello.instance_id:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, "another node with this name is connected")

    def read(self, node, messages, outgoing):
        try:
            for message in messages:
                with self.changed:
                    if node.outgoing is not outgoing:
                        break  # There is a newer stream; ignore this one.
                    self.take(node, message, lambda **kind: outgoing.put(pb.SchedulerMessage(**kind)))
                    self.changed.notify_all()
        except grpc.RpcError:
            pass  # The stream has ended. The node keeps its volumes.
        with self.changed:
            if node.outgoing is outgoing:
                node.outgoing = None
        outgoing.put(None)

    def take(self, node, message, say):
        kind = message.WhichOneof("message")
        if kind == "heartbeat":
            lease = pb.Lease(epoch=self.epoch, duration={"seconds": LEASE_SECONDS})
            say(heartbeat_answer=pb.HeartbeatAnswer(number=message.heartbeat.number, lease=lease))
            for operation in node.asked.values():  # A repeat is free: an id is one operation.
                say(operation=operation)
        elif kind == "state":
            self.take_state(node, message.state, say)
        elif kind == "result":
            if message.result.refusal in (pb.LEASE_EPOCH, pb.LEASE_NOT_VALID, pb.TOO_MANY):
                return  # Nothing was begun: it is sent again with the next heartbeat.
            asked = node.asked.pop(message.result.id, None)
            if asked and not asked.HasField("confirm"):  # Otherwise it is a repeat, or unused.
                node.results[message.result.id] = message.result
            say(acknowledge=pb.Acknowledge(operation_ids=[message.result.id],
                                           settled_below=min(node.asked, default=self.last_id + 1)))
        elif kind == "ask":
            say(answer=pb.Answer(number=message.ask.number, code=grpc.StatusCode.UNIMPLEMENTED.value[0],
                                 message="this scheduler is an example"))

    def take_state(self, node, state, say):
        """Keeps the part of the state that this scheduler needs. A larger one would keep the volumes, too."""
        if state.full:
            node.plugins = {}
        for thing in state.objects:
            kind = thing.WhichOneof("object")
            if kind == "plugin":
                node.plugins[thing.plugin.id] = thing.plugin
            elif kind == "volume":
                self.confirm(node, thing.volume)
            elif kind == "removed":
                node.plugins.pop(thing.removed.plugin_id, None)
            elif kind == "ended_consumer":  # The node releases its volumes; move() detaches them later.
                say(acknowledge=pb.Acknowledge(ended_consumers=[thing.ended_consumer.number]))
            elif kind == "forced_release" and thing.forced_release.progress == pb.ForcedRelease.RELEASED:
                say(acknowledge=pb.Acknowledge(forced_releases=[thing.forced_release.number]))

    def confirm(self, node, volume):
        """After a reboot, or an expired lease, a node blocks its publications. Unblocks those that are still wanted."""
        wanted = [pb.PublicationName(plugin_id=volume.plugin_id, volume_id=volume.volume_id, namespace="example",
                                     consumer=use.consumer.partition("/")[2], name=use.name)
                  for use in volume.publications
                  if use.blocked and (volume.plugin_id, volume.volume_id, use.consumer) in node.wanted]
        if wanted:
            self.begin(node, confirm=pb.ConfirmOperation(publications=wanted))

    # --- Operations ---

    def begin(self, node, **kind):
        self.last_id += 1
        operation = node.asked[self.last_id] = pb.Operation(id=self.last_id, lease_epoch=self.epoch, **kind)
        if node.outgoing:
            node.outgoing.put(pb.SchedulerMessage(operation=operation))
        return operation

    def ask(self, name, **kind):
        """The result of one operation. It is sent on every new stream until there is a result."""
        with self.changed:
            node = self.nodes[name]
            operation = self.begin(node, **kind)
            self.changed.wait_for(lambda: operation.id in node.results)
            return node.results.pop(operation.id)

    def run(self, name, **kind):
        """Repeats an operation, with growing pauses, until it is done."""
        pause = HEARTBEAT_SECONDS
        while True:
            result = self.ask(name, **kind)
            # An unknown value counts as the zero value: it may have happened.
            outcome = result.outcome if result.outcome in pb.Outcome.values() else pb.OUTCOME_UNKNOWN
            left = result.unpublish.uses_left  # Not released before this is 0: unpublish again until then.
            words = f"{left} uses left" if left else result.message
            print(name, *kind, pb.Outcome.Name(outcome), words, flush=True)
            if outcome == pb.OUTCOME_DONE and not left:
                return result
            if outcome in (pb.OUTCOME_REFUSED, pb.OUTCOME_FAILED):
                raise RuntimeError(f"{name}: {result.message}")
            if self.ended.wait(pause):
                raise RuntimeError(f"{name}: this scheduler ends")
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def storage(self, name, plugin_id):
        """The plugin's fingerprint: whether it needs an attach, and the storage's id of the node."""
        def there():
            known = self.nodes[name].plugins.get(plugin_id) if name in self.nodes else None
            return known.fingerprint if known and known.registered else None

        with self.changed:
            return self.changed.wait_for(there)

    def publish(self, name, use):
        storage = self.storage(name, use["plugin_id"])
        request = dict(use, capability={"access_mode": node_pb2.SINGLE_NODE_WRITER})
        if storage.needs_attach:
            attach = csi.ControllerPublishVolumeRequest(
                volume_id=use["volume_id"], node_id=storage.node_id, volume_capability=WRITER)
            answer = self.run(name, controller={"plugin_id": use["plugin_id"], "attach": attach}).controller
            request["publish_context"] = {"values": answer.attach.publish_context}
        with self.changed:
            self.nodes[name].wanted.add((use["plugin_id"], use["volume_id"], "example/" + use["consumer"]))
        return self.run(name, publish={"namespace": "example", "request": request}).publish.target_path

    def release(self, name, use):
        """Detaches only after the node has confirmed the release. Until then no other node gets the volume."""
        storage = self.storage(name, use["plugin_id"])
        with self.changed:
            self.nodes[name].wanted.discard((use["plugin_id"], use["volume_id"], "example/" + use["consumer"]))
        self.run(name, unpublish={"namespace": "example", "request": use})
        if storage.needs_attach:
            detach = csi.ControllerUnpublishVolumeRequest(volume_id=use["volume_id"], node_id=storage.node_id)
            self.run(name, controller={"plugin_id": use["plugin_id"], "detach": detach})


def move(scheduler, nodes, use):
    """The story: the volume is on each of the nodes in turn, and on one at a time."""
    for name in nodes:
        scheduler.release(name, use)  # An earlier run may have left it there.
    for name in nodes:
        try:
            print(name, "published at", scheduler.publish(name, use), flush=True)
            sys.stdin.readline()  # Look at the mount, then press Enter.
        finally:
            scheduler.release(name, use)
    print("released", flush=True)


def listen(server, args):
    if not args.certificate:
        return server.add_insecure_port(args.listen)
    key, certificate, ca = (open(path, "rb").read() for path in (args.key, args.certificate, args.ca))
    return server.add_secure_port(
        args.listen, grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--listen", required=True, help="unix:/path, or host:port with --certificate, --key and --ca")
    parser.add_argument("--certificate"), parser.add_argument("--key"), parser.add_argument("--ca")
    parser.add_argument("--plugin", required=True), parser.add_argument("--volume", required=True)
    parser.add_argument("nodes", nargs="+")
    args = parser.parse_args()
    scheduler = Scheduler(tls=bool(args.certificate))
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=64))  # One for each node.
    scheduler_pb2_grpc.add_SchedulerLinkServicer_to_server(scheduler, server)
    port = listen(server, args)
    server.start()
    print("listening at", args.listen, "port", port, flush=True)
    try:
        move(scheduler, args.nodes, {"plugin_id": args.plugin, "volume_id": args.volume, "consumer": "web"})
    finally:
        scheduler.ended.set()
        server.stop(1).wait()


if __name__ == "__main__":
    main()
