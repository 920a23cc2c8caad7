package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-router/sluice/test/process"
)

// adminToken is that of an account that may do everything.
const adminToken = "admin-token"

// startLimit is how long a server may take to start. kube-apiserver takes 4 s of two
// idle cores.
const startLimit = 3 * time.Minute

// Cluster is an etcd with API servers in front of it.
type Cluster struct {
	Dir string // of data, certificates and logs

	bin         Binaries
	net         string // the first two numbers of all addresses: "127.90"
	lock        net.Listener
	certs       *certificates
	etcd        *process.Process
	etcdURL     string
	mu          sync.Mutex
	servers     []*APIServer     // guarded by mu
	finished    bool             // guarded by mu
	controllers *process.Process // nil without them; guarded by mu
}

// StartCluster starts etcd and one API server. All it writes is in dir.
func StartCluster(ctx context.Context, bin Binaries, dir string) (_ *Cluster, err error) {
	c := &Cluster{Dir: dir, bin: bin}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	if c.net, c.lock, err = takeNetwork(); err != nil {
		return nil, err
	}
	if c.certs, err = makeCertificates(dir, c.address(0, 1)); err != nil {
		return nil, err
	}
	tokens := adminToken + ",admin,admin,\"system:masters\"\n"
	if err := os.WriteFile(filepath.Join(dir, "tokens.csv"), []byte(tokens), 0o600); err != nil {
		return nil, err
	}
	c.etcdURL = "http://" + c.address(0, 1) + ":2379"
	peer := "http://" + c.address(0, 1) + ":2380"
	c.etcd, err = process.Start(dir, "etcd", []string{"PATH=" + os.Getenv("PATH")}, bin.Etcd,
		"--data-dir", filepath.Join(dir, "etcd"), "--listen-client-urls", c.etcdURL, "--advertise-client-urls", c.etcdURL,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	if err != nil {
		return nil, err
	}
	if _, err := c.AddServer(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// takeNetwork finds a network 127.N.0.0/16 that no other cluster on this machine uses.
// It is held by a listener.
func takeNetwork() (string, net.Listener, error) {
	var err error
	for i := range 100 {
		network := "127." + strconv.Itoa(100+(os.Getpid()+i)%100)
		var l net.Listener
		if l, err = net.Listen("tcp", network+".0.1:6440"); err == nil {
			return network, l, nil
		}
	}
	return "", nil, fmt.Errorf("cannot find a free network of loopback addresses: %w", err)
}

// address is one of the cluster's.
func (c *Cluster) address(third, fourth int) string {
	return c.net + "." + strconv.Itoa(third) + "." + strconv.Itoa(fourth)
}

// Close ends all processes.
func (c *Cluster) Close() {
	c.mu.Lock()
	servers, controllers := c.servers, c.controllers
	c.finished = true
	c.mu.Unlock()
	if controllers != nil {
		controllers.Kill()
	}
	for _, s := range servers {
		if s.process != nil {
			s.process.Kill()
		}
	}
	if c.etcd != nil {
		c.etcd.Kill()
	}
	if c.lock != nil {
		c.lock.Close()
	}
}

// APIServer is one kube-apiserver.
type APIServer struct {
	URL string

	cluster *Cluster
	name    string
	port    int
	process *process.Process
}

// AddServer starts one more API server on the same etcd and waits until it is ready.
func (c *Cluster) AddServer(ctx context.Context) (*APIServer, error) {
	c.mu.Lock()
	n := len(c.servers)
	s := &APIServer{cluster: c, name: fmt.Sprintf("apiserver-%d", n), port: 6443 + n}
	s.URL = "https://" + c.address(0, 1) + ":" + strconv.Itoa(s.port)
	c.servers = append(c.servers, s)
	finished := c.finished
	c.mu.Unlock()
	if finished {
		return nil, errors.New("cannot add an API server: the cluster is closed")
	}
	return s, s.Start(ctx)
}

// Start starts the server, again after Kill, and waits until it is ready.
func (s *APIServer) Start(ctx context.Context) error {
	dir := s.cluster.Dir
	var err error
	s.process, err = process.Start(dir, s.name, []string{"PATH=" + os.Getenv("PATH")}, s.cluster.bin.APIServer,
		"--etcd-servers="+s.cluster.etcdURL,
		"--bind-address="+s.cluster.address(0, 1), "--secure-port="+strconv.Itoa(s.port),
		"--endpoint-reconciler-type=none",
		"--tls-cert-file="+s.cluster.certs.cert, "--tls-private-key-file="+s.cluster.certs.key,
		"--service-account-key-file="+s.cluster.certs.accountKey, "--service-account-signing-key-file="+s.cluster.certs.accountKey,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--token-auth-file="+filepath.Join(dir, "tokens.csv"),
		"--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/24",
		// Pods without a service account's volume, which only a controller would make.
		"--disable-admission-plugins=ServiceAccount",
	)
	if err != nil {
		return err
	}
	return s.WaitReady(ctx)
}

// WaitReady waits until the server serves.
func (s *APIServer) WaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	admin := s.Client(adminToken)
	for {
		err := admin.do(ctx, http.MethodGet, "/readyz", "", nil, nil)
		if err == nil {
			return nil
		}
		select {
		case <-s.process.Done():
			return fmt.Errorf("%s ended while it started; the end of its log:\n%s", s.name, s.process.LogTail(20))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; the end of its log:\n%s", s.name, err, s.process.LogTail(20))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Kill ends the server at once.
func (s *APIServer) Kill() { s.process.Kill() }

// Freeze stops the server's process: connections stay and are silent. Thaw lets it run.
func (s *APIServer) Freeze() error { return s.process.Freeze() }

// Thaw undoes Freeze.
func (s *APIServer) Thaw() error { return s.process.Thaw() }

// Client is a client of this server with that token.
func (s *APIServer) Client(token string) *Client {
	return &Client{base: s.URL, token: token, http: &http.Client{Transport: &http.Transport{
		TLSClientConfig: s.cluster.certs.client(), MaxIdleConnsPerHost: 64, ForceAttemptHTTP2: true,
	}}}
}

// Admin is a client that may do everything.
func (s *APIServer) Admin() *Client { return s.Client(adminToken) }

// WriteKubeconfig writes how to reach this server with that token.
func (s *APIServer) WriteKubeconfig(file, namespace, token string) error {
	text, err := json.MarshalIndent(object{
		"apiVersion": "v1", "kind": "Config", "current-context": "test",
		"clusters": []object{{"name": "test", "cluster": object{
			"server": s.URL, "certificate-authority-data": base64.StdEncoding.EncodeToString(s.cluster.certs.authority)}}},
		"users":    []object{{"name": "test", "user": object{"token": token}}},
		"contexts": []object{{"name": "test", "context": object{"cluster": "test", "user": "test", "namespace": namespace}}},
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o600) // JSON is YAML
}

// Compact makes etcd forget all history before now, as it does by itself every five
// minutes: who wants to go on from an older resource version gets a 410.
func (c *Cluster) Compact(ctx context.Context) error {
	var head struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	key := base64.StdEncoding.EncodeToString([]byte("/"))
	if err := c.etcdCall(ctx, "/v3/kv/range", object{"key": key}, &head); err != nil {
		return err
	}
	err := c.etcdCall(ctx, "/v3/kv/compaction", object{"revision": head.Header.Revision, "physical": true}, &struct{}{})
	if err != nil && strings.Contains(err.Error(), "has been compacted") {
		return nil // by another test
	}
	return err
}

func (c *Cluster) etcdCall(ctx context.Context, path string, body object, into any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.etcdURL+path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("cannot call etcd: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("cannot call etcd: %s: %d %s (%v)", path, resp.StatusCode, answer, err)
	}
	return json.Unmarshal(answer, into)
}

// Server is the n-th API server, from 0.
func (c *Cluster) Server(n int) *APIServer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.servers[n]
}
