package kubelet

import (
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/standalone-cinder/standalone-cinder/test/e2e/vm"
)

// Proxy returns an HTTP proxy through which an API server reaches the kubelets, whose
// machines it finds by the names of their nodes.
func Proxy(machine func(node string) *vm.Machine) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		node, port, err := net.SplitHostPort(r.Host)
		if r.Method != http.MethodConnect || err != nil {
			http.Error(w, "only CONNECT NODE:PORT", http.StatusMethodNotAllowed)
			return
		}
		m := machine(node)
		if m == nil {
			http.Error(w, "no machine runs node "+node, http.StatusBadGateway)
			return
		}
		inside, err := m.Connect(net.JoinHostPort("127.0.0.1", port))
		if err != nil {
			http.Error(w, fmt.Sprintf("node %s: %v", node, err), http.StatusBadGateway)
			return
		}
		defer func() { _ = inside.Close() }()
		outside, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer func() { _ = outside.Close() }()
		if _, err := io.WriteString(outside, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
			return
		}
		over := make(chan struct{}, 2)
		go func() { _, _ = io.Copy(inside, buffered); over <- struct{}{} }()
		go func() { _, _ = io.Copy(outside, inside); over <- struct{}{} }()
		<-over
	})
}
