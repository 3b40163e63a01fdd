#!/bin/sh
# Starts the kubelet, or starts it again.
pkill -x kubelet && while pidof kubelet > /dev/null; do sleep 0.1; done
setsid /opt/kubernetes/kubelet --config /opt/kubernetes/kubelet.yaml --kubeconfig /etc/kubernetes/kubeconfig \
  --hostname-override "$1" --node-ip 10.0.2.15 -v "$(cat /etc/kubernetes/verbosity)" >> /var/log/kubelet.log 2>&1 < /dev/null &
