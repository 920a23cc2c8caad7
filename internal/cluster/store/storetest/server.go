// Package storetest tests stores, and runs the coordinators that they need.
//
// # Goal
//
// Run has the tests that every store passes. Where it is given a [Server], the tests kill,
// freeze, wipe and restore it too. [StartEtcd], [StartRedis] and [StartValkey] start real
// ones, for these tests and for those of whole routers; [Proxy] stands in front of one and
// loses what it is told to.
//
// # What is not installed
//
// test/stores/install.sh installs the servers. Without them the tests are skipped, unless
// SLUICE_STORES_REQUIRED is 1.
package storetest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/test/process"
)

// Server is a coordinator in a process of its own, on an address that stays the same.
type Server struct {
	// Address is HOST:PORT.
	Address string
	// Scheme is that of its URL: "etcd", "redis" or "valkey".
	Scheme string

	t       testing.TB
	dir     string // of its log
	data    string // what it keeps
	argv    []string
	answers func(context.Context, *Server) error
	health  string // URL of etcd for those who ask how it is
	process *process.Process
}

// URL is what --cluster takes.
func (s *Server) URL() string { return s.Scheme + "://" + s.Address }

// startLimit is how long a server may take to start on a busy machine. etcd takes a second.
const startLimit = time.Minute

// StartEtcd starts an etcd with one member. It ends with the test.
func StartEtcd(t testing.TB, flags ...string) *Server {
	t.Helper()
	return StartEtcdCluster(t, 1, flags...)[0]
}

// StartEtcdCluster starts an etcd with n members. They end with the test. Wipe and Restore
// are not for those of a cluster.
func StartEtcdCluster(t testing.TB, n int, flags ...string) []*Server {
	t.Helper()
	binary := find(t, "etcd")
	scheme := "http://"
	if slices.Contains(flags, "--cert-file") {
		scheme = "https://"
	}
	members := make([]*Server, n)
	var peers, all []string
	for i := range members {
		peers = append(peers, "http://"+FreeAddress(t))
		all = append(all, fmt.Sprintf("m%d=%s", i, peers[i]))
	}
	for i := range members {
		s := &Server{t: t, Address: FreeAddress(t), Scheme: "etcd", dir: t.TempDir(), health: "http://" + FreeAddress(t), answers: etcdAnswers}
		s.data = filepath.Join(s.dir, "data")
		s.argv = append([]string{
			binary, "--name", fmt.Sprintf("m%d", i), "--data-dir", s.data,
			"--listen-client-urls", scheme + s.Address, "--advertise-client-urls", scheme + s.Address,
			"--listen-peer-urls", peers[i], "--initial-advertise-peer-urls", peers[i], "--initial-cluster", strings.Join(all, ","),
			"--listen-metrics-urls", s.health,
			"--heartbeat-interval", "40", "--election-timeout", "400", // so that it starts soon
		}, flags...)
		members[i] = s
		s.launch()
	}
	for _, s := range members {
		s.wait()
	}
	return members
}

// StartRedis starts a Redis that writes to its files at once. It ends with the test.
func StartRedis(t testing.TB, flags ...string) *Server {
	t.Helper()
	return startRedis(t, "redis", find(t, "redis-server"), flags)
}

// StartValkey starts a Valkey in the same way.
func StartValkey(t testing.TB, flags ...string) *Server {
	t.Helper()
	return startRedis(t, "valkey", find(t, "valkey-server"), flags)
}

func startRedis(t testing.TB, scheme, binary string, flags []string) *Server {
	t.Helper()
	s := &Server{t: t, Address: FreeAddress(t), Scheme: scheme, dir: t.TempDir()}
	s.data = filepath.Join(s.dir, "data")
	host, port, _ := net.SplitHostPort(s.Address)
	s.argv = append([]string{
		binary, "--port", port, "--bind", host, "--dir", s.data, "--save", "", "--appendonly", "yes", "--appendfsync", "always",
	}, flags...)
	s.answers = redisAnswers
	s.Start()
	return s
}

// Start starts the server, again after Kill, and waits until it answers.
func (s *Server) Start() {
	s.t.Helper()
	s.launch()
	s.wait()
}

func (s *Server) launch() {
	s.t.Helper()
	if err := os.MkdirAll(s.data, 0o700); err != nil {
		s.t.Fatal(err)
	}
	p, err := process.Start(s.dir, s.Scheme, []string{"PATH=" + os.Getenv("PATH")}, s.argv...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.process = p
	s.t.Cleanup(p.Kill)
}

func (s *Server) wait() {
	s.t.Helper()
	p := s.process
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	for {
		err := s.answers(ctx, s)
		if err == nil {
			return
		}
		select {
		case <-p.Done():
			s.t.Fatalf("%s ended while it started; the end of its log:\n%s", s.Scheme, p.LogTail(20))
		case <-ctx.Done():
			s.t.Fatalf("%s does not answer: %v; the end of its log:\n%s", s.Scheme, err, p.LogTail(20))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Kill ends the server at once. What it keeps stays.
func (s *Server) Kill() { s.process.Kill() }

// Freeze stops the server where it is: its connections stay and are silent.
func (s *Server) Freeze() {
	if err := s.process.Freeze(); err != nil {
		s.t.Error(err)
	}
}

// Thaw undoes Freeze.
func (s *Server) Thaw() {
	if err := s.process.Thaw(); err != nil {
		s.t.Error(err)
	}
}

// Wipe kills the server, takes away all that it keeps and starts it.
func (s *Server) Wipe() {
	s.t.Helper()
	s.Kill()
	s.remove()
	s.Start()
}

func (s *Server) remove() {
	if err := os.RemoveAll(s.data); err != nil {
		s.t.Fatal(err)
	}
}

// Backup returns a copy of what the server keeps. It is restarted for that.
func (s *Server) Backup() (backup string) {
	s.t.Helper()
	s.Kill()
	backup = filepath.Join(s.t.TempDir(), "backup")
	if err := os.CopyFS(backup, os.DirFS(s.data)); err != nil {
		s.t.Fatal(err)
	}
	s.Start()
	return backup
}

// Restore kills the server and starts it with what it kept at the time of the backup.
func (s *Server) Restore(backup string) {
	s.t.Helper()
	s.Kill()
	s.remove()
	if err := os.CopyFS(s.data, os.DirFS(backup)); err != nil {
		s.t.Fatal(err)
	}
	s.Start()
}

// Home is where install.sh puts what no package of the system has.
func Home() string {
	if dir := os.Getenv("STORES_TEST_HOME"); dir != "" {
		return dir
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(cache, "sluice-stores")
}

// ErrNotInstalled is returned for a server that is not there.
var ErrNotInstalled = errors.New("not installed (test/stores/install.sh does it)")

// Find returns the program of that name: etcd, redis-server or valkey-server.
func Find(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{Home(), "/usr/bin", "/usr/sbin", "/usr/local/bin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, ErrNotInstalled)
}

// find skips the test if the server is not there.
func find(t testing.TB, name string) string {
	t.Helper()
	path, err := Find(name)
	switch {
	case err == nil:
		return path
	case os.Getenv("SLUICE_STORES_REQUIRED") == "1":
		t.Fatal(err)
	default:
		t.Skip(err)
	}
	return ""
}

// taken are the addresses that this process has given out.
var taken = make(chan map[string]bool, 1)

func init() { taken <- map[string]bool{} }

// FreeAddress returns an address on which nobody listens. Servers are told their port, so
// it cannot be held until they start; it is on a loopback address of this process's own,
// where others do not look for one.
func FreeAddress(t testing.TB) string {
	t.Helper()
	pid := os.Getpid()
	host := "127." + strconv.Itoa(201+pid>>14%50) + "." + strconv.Itoa(pid>>6&255) + "." + strconv.Itoa(1+pid&63)
	given := <-taken
	defer func() { taken <- given }()
	for range 100 {
		l, err := net.Listen("tcp", host+":0")
		if err != nil {
			l, err = net.Listen("tcp", "127.0.0.1:0") // no Linux
		}
		if err != nil {
			t.Fatalf("cannot find a free address: %v", err)
		}
		address := l.Addr().String()
		l.Close()
		if !given[address] {
			given[address] = true
			return address
		}
	}
	t.Fatal("cannot find a free address")
	return ""
}

// etcdAnswers says nil when the server has a leader.
func etcdAnswers(ctx context.Context, s *Server) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.health+"/health", nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// redisAnswers says nil when the server has loaded its files.
func redisAnswers(ctx context.Context, s *Server) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.Address)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && strings.HasPrefix(line, "-LOADING") {
		err = errors.New(line)
	}
	return err
}
