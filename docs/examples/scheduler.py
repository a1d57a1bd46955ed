#!/usr/bin/python3
"""A small, whole scheduler for Berth's nodes: attaches a volume, publishes it, moves it to another node, releases it.

Needs Debian's python3-grpcio and python3-protobuf, and the modules that protoc makes of Berth's protos:

  protoc -I /usr/include/berth --python_out=gen --grpc_python_out=gen \\
    --plugin=protoc-gen-grpc_python=$(command -v grpc_python_plugin) \\
    berth/v1/node.proto berth/v1/scheduler.proto csi/csi.proto
  PYTHONPATH=gen ./scheduler.py --listen unix:/run/scheduler.sock --plugin ceph --volume vol-1 node-1 node-2

It keeps what it knows in memory, and so takes a new lease epoch whenever it starts. docs/protocol.md tells the rules.
"""
import argparse
import concurrent.futures
import queue
import threading
import time

import grpc
from berth.v1 import scheduler_pb2 as pb
from berth.v1 import scheduler_pb2_grpc
from csi import csi_pb2 as csi

LEASE_SECONDS = 20
WRITER = csi.VolumeCapability(
    mount={}, access_mode={"mode": csi.VolumeCapability.AccessMode.SINGLE_NODE_WRITER})


class Node:
    """What is known of one node, whether it is connected or not."""

    def __init__(self):
        self.instance_id, self.outgoing = None, None  # of its stream; None: it is not connected
        self.volumes, self.plugins = {}, {}  # its newest state, as it told it
        self.asked, self.results = {}, {}  # operations without a result, and results, by id


class Scheduler(scheduler_pb2_grpc.SchedulerLinkServicer):
    def __init__(self):
        self.nodes, self.changed = {}, threading.Condition()
        self.epoch = int(time.time())
        self.last_id = self.epoch * 1000

    def Connect(self, messages, context):
        hello = next(messages).hello
        with self.changed:
            node = self.nodes.setdefault(hello.node_id, Node())
            if node.outgoing and node.instance_id != hello.instance_id:
                context.abort(grpc.StatusCode.ALREADY_EXISTS, "another node goes by this name, and is connected")
            if node.outgoing:
                node.outgoing.put(None)  # The same node again: its old stream is dead, though it did not say so.
            node.instance_id, node.outgoing = hello.instance_id, queue.Queue()
        outgoing = node.outgoing
        welcome = pb.Welcome(protocol={"major": 1}, cluster_id="example", heartbeat_interval={"seconds": 1})
        outgoing.put(pb.SchedulerMessage(welcome=welcome))
        threading.Thread(target=self.read, args=(node, messages, outgoing), daemon=True).start()
        yield from iter(outgoing.get, None)

    def read(self, node, messages, outgoing):
        try:
            for message in messages:
                with self.changed:
                    self.take(node, message, outgoing)
                    self.changed.notify_all()
        except grpc.RpcError:
            pass  # The stream has ended. What the node holds it holds still.
        with self.changed:
            if node.outgoing is outgoing:
                node.outgoing = None
        outgoing.put(None)

    def take(self, node, message, outgoing):
        kind = message.WhichOneof("message")
        if kind == "heartbeat":
            lease = pb.Lease(epoch=self.epoch, duration={"seconds": LEASE_SECONDS})
            answer = pb.HeartbeatAnswer(number=message.heartbeat.number, lease=lease)
            outgoing.put(pb.SchedulerMessage(heartbeat_answer=answer))
            for operation in node.asked.values():  # Asking again is free: an id is one operation.
                outgoing.put(pb.SchedulerMessage(operation=operation))
        elif kind == "state":
            if message.state.full:
                node.volumes, node.plugins = {}, {}
            for thing in message.state.objects:
                if thing.HasField("volume"):
                    node.volumes[thing.volume.plugin_id, thing.volume.volume_id] = thing.volume
                elif thing.HasField("plugin"):
                    node.plugins[thing.plugin.id] = thing.plugin
                elif thing.removed.HasField("volume"):
                    node.volumes.pop((thing.removed.volume.plugin_id, thing.removed.volume.volume_id), None)
        elif kind == "result" and not message.result.refusal and message.result.id in node.asked:
            node.results[message.result.id] = message.result
            del node.asked[message.result.id]
            taken = pb.Acknowledge(operation_ids=[message.result.id], 
                                    settled_below=min(node.asked, default=self.last_id + 1))
            outgoing.put(pb.SchedulerMessage(acknowledge=taken))

    def wait(self, condition):
        with self.changed:
            self.changed.wait_for(condition)

    def run(self, name, **kind):
        """Asks the node for one operation until it is answered, across any break of the link."""
        with self.changed:
            self.last_id += 1
            node = self.nodes[name]
            operation = pb.Operation(id=self.last_id, lease_epoch=self.epoch, **kind)
            node.asked[operation.id] = operation
            if node.outgoing:
                node.outgoing.put(pb.SchedulerMessage(operation=operation))
            self.changed.wait_for(lambda: operation.id in node.results)
            result = node.results.pop(operation.id)
        print(name, operation.WhichOneof("kind"), pb.Outcome.Name(result.outcome), result.message, flush=True)
        if result.outcome != pb.OUTCOME_DONE:
            raise RuntimeError(result.message)
        return result

    def ready(self, name, plugin):
        node = self.nodes.get(name)
        return bool(node and plugin in node.plugins and node.plugins[plugin].registered)

    def publish(self, name, plugin, volume, consumer):
        fingerprint = self.nodes[name].plugins[plugin].fingerprint
        request = {"plugin_id": plugin, "volume_id": volume, "consumer": consumer,
                   "capability": {"access_mode": pb.berth_dot_v1_dot_node__pb2.SINGLE_NODE_WRITER}}
        if fingerprint.needs_attach:
            attach = csi.ControllerPublishVolumeRequest(
                volume_id=volume, node_id=fingerprint.node_id, volume_capability=WRITER)
            attached = self.run(name, controller={"plugin_id": plugin, "attach": attach}).controller.attach
            request["publish_context"] = {"values": attached.publish_context}
        return self.run(name, publish={"namespace": "example", "request": request}).publish.target_path

    def release(self, name, plugin, volume, consumer):
        """Returns only when the node has said that it let go, and the storage that it is detached."""
        fingerprint = self.nodes[name].plugins[plugin].fingerprint
        request = {"plugin_id": plugin, "volume_id": volume, "consumer": consumer}
        self.run(name, unpublish={"namespace": "example", "request": request})
        if fingerprint.needs_attach:
            detach = csi.ControllerUnpublishVolumeRequest(volume_id=volume, node_id=fingerprint.node_id)
            self.run(name, controller={"plugin_id": plugin, "detach": detach})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--listen", required=True, help="unix:/path, or host:port with --certificate, --key and --ca")
    parser.add_argument("--certificate"), parser.add_argument("--key"), parser.add_argument("--ca")
    parser.add_argument("--plugin", required=True), parser.add_argument("--volume", required=True)
    parser.add_argument("nodes", nargs="+")
    args = parser.parse_args()
    scheduler = Scheduler()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=64))
    scheduler_pb2_grpc.add_SchedulerLinkServicer_to_server(scheduler, server)
    if args.certificate:
        key, certificate, ca = (open(path, "rb").read() for path in (args.key, args.certificate, args.ca))
        server.add_secure_port(args.listen, grpc.ssl_server_credentials([(key, certificate)], ca, True))
    else:
        server.add_insecure_port(args.listen)
    server.start()
    for name in args.nodes:
        scheduler.wait(lambda: scheduler.ready(name, args.plugin))
        print(name, "is ready", flush=True)
    for name in args.nodes:
        target = scheduler.publish(name, args.plugin, args.volume, "web")
        print(name, "published at", target, flush=True)
        input()  # whoever plays with it looks at the mount, and presses Enter
        scheduler.release(name, args.plugin, args.volume, "web")
    scheduler.wait(lambda: not any((args.plugin, args.volume) in node.volumes for node in scheduler.nodes.values()))
    print("released", flush=True)
    server.stop(1).wait()


if __name__ == "__main__":
    main()
