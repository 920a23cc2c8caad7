//go:build linux

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// toStore is the store's end of a link; members are numbered from 0.
const toStore = -1

// links are all connections between the members of a cluster, and to their store: each goes
// through a proxy that can lose what one end says to the other.
type links struct {
	t testing.TB
	// pid is that of the process that a member has now, 0: none.
	pid func(member int) int
	n   int

	running sync.WaitGroup
	mu      sync.Mutex
	// guarded by mu
	changed   *sync.Cond
	ways      map[[2]int]*way
	conns     map[net.Conn]struct{}
	listeners []net.Listener
	ended     bool
}

// way is all that one end says to another one. It is guarded by links.mu.
type way struct {
	held  bool          // nothing gets through, and what is on its way waits
	delay time.Duration // of each piece
	left  int           // bytes until it is held; -1: no such bound
	// watch is called with each piece, without locks, before it is passed on. False: the
	// connection ends, and the piece is lost.
	watch func([]byte) bool
}

func newLinks(t testing.TB, n int, pid func(int) int) *links {
	l := &links{t: t, n: n, pid: pid, ways: map[[2]int]*way{}, conns: map[net.Conn]struct{}{}}
	l.changed = sync.NewCond(&l.mu)
	t.Cleanup(l.end)
	return l
}

func (l *links) end() {
	l.mu.Lock()
	l.ended = true
	l.changed.Broadcast()
	for c := range l.conns {
		c.Close()
	}
	for _, ln := range l.listeners {
		ln.Close()
	}
	l.mu.Unlock()
	l.running.Wait()
}

// proxy listens for connections to one end. from is the member that dials; nobody: whoever
// has the connection's other end.
const nobody = -2

func (l *links) proxy(from, to int, target func() string) (address string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		l.t.Fatal(err)
	}
	l.mu.Lock()
	l.listeners = append(l.listeners, ln)
	l.mu.Unlock()
	l.running.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			l.running.Go(func() {
				from := from
				// A process that starts is known a little later.
				for end := time.Now().Add(10 * time.Second); from == nobody && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
					from = l.owner(conn)
				}
				l.carry(conn, from, to, target())
			})
		}
	})
	return ln.Addr().String()
}

// carry passes on what both ends say until one of them hangs up.
func (l *links) carry(conn net.Conn, from, to int, target string) {
	defer conn.Close()
	far, err := net.DialTimeout("tcp", target, 5*time.Second)
	if err != nil {
		return
	}
	defer far.Close()
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return
	}
	l.conns[conn], l.conns[far] = struct{}{}, struct{}{}
	there, back := l.way(from, to), l.way(to, from)
	l.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { l.pump(far, conn, there) })
	both.Go(func() { l.pump(conn, far, back) })
	both.Wait()
	l.mu.Lock()
	delete(l.conns, conn)
	delete(l.conns, far)
	l.mu.Unlock()
}

// way is that from one end to another; mu is held.
func (l *links) way(from, to int) *way {
	w := l.ways[[2]int{from, to}]
	if w == nil {
		w = &way{left: -1}
		l.ways[[2]int{from, to}] = w
	}
	return w
}

// piece is what was read at once, to be written when it is due.
type piece struct {
	data []byte
	due  time.Time
}

func (l *links) pump(dst, src net.Conn, w *way) {
	pieces := make(chan piece, 1024)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(pieces)
		for {
			b := make([]byte, 32<<10)
			n, err := src.Read(b)
			if n > 0 {
				l.mu.Lock()
				due, watch := time.Now().Add(w.delay), w.watch
				l.mu.Unlock()
				if watch != nil && !watch(b[:n]) {
					return
				}
				pieces <- piece{b[:n], due}
			}
			if err != nil {
				return
			}
		}
	})
	for p := range pieces {
		time.Sleep(time.Until(p.due))
		if !l.pass(w, len(p.data)) {
			break
		}
		if _, err := dst.Write(p.data); err != nil {
			break
		}
	}
	l.pass(w, 0) // the end of a connection is something that is said, too
	dst.Close()
	src.Close()
	for range pieces { // lets the reader end
	}
	reading.Wait()
}

// pass waits until n bytes may pass; false: the test is over.
func (l *links) pass(w *way, n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.left >= 0 {
		if w.left -= n; w.left < 0 {
			w.held = true
		}
	}
	for w.held && !l.ended {
		l.changed.Wait()
	}
	return !l.ended
}

// cut loses what one end says to the other from now on, or from some bytes on. What is said
// meanwhile comes when the link is healed, unless that drops connections.
func (l *links) cut(from, to int) { l.change(from, to, func(w *way) { w.held = true }) }

func (l *links) cutAfter(from, to, bytes int) {
	l.change(from, to, func(w *way) { w.left = bytes })
}

func (l *links) change(from, to int, f func(*way)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l.way(from, to))
	l.changed.Broadcast()
}

// cutOff cuts a member from all the others, and not from the store.
func (l *links) cutOff(member int) {
	for i := range l.n {
		if i != member {
			l.cut(member, i)
			l.cut(i, member)
		}
	}
}

// heal ends all that was done to links.
func (l *links) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.ways {
		w.held, w.delay, w.left, w.watch = false, 0, -1, nil
	}
	l.changed.Broadcast()
}

// hangUp closes all connections.
func (l *links) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.Close()
	}
}

// owner is the member that dialled a connection: the one whose process has its other end.
func (l *links) owner(conn net.Conn) int {
	inode, err := inodeOf(conn.RemoteAddr().(*net.TCPAddr), conn.LocalAddr().(*net.TCPAddr))
	if err != nil || inode == "" {
		return nobody
	}
	for i := range l.n {
		dir := fmt.Sprintf("/proc/%d/fd", l.pid(i))
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if to, err := os.Readlink(dir + "/" + e.Name()); err == nil && to == "socket:["+inode+"]" {
				return i
			}
		}
	}
	return nobody
}

// inodeOf finds the socket at local that is connected to remote.
func inodeOf(local, remote *net.TCPAddr) (string, error) {
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		return "", err
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	for in.Scan() {
		fields := strings.Fields(in.Text())
		if len(fields) > 9 && fields[1] == procAddress(local) && fields[2] == procAddress(remote) {
			return fields[9], nil
		}
	}
	if err := in.Err(); err != nil {
		return "", err
	}
	return "", io.EOF
}

// procAddress is an address as /proc/net/tcp has it.
func procAddress(a *net.TCPAddr) string {
	ip := a.IP.To4()
	if ip == nil {
		return ""
	}
	return fmt.Sprintf("%02X%02X%02X%02X:%s", ip[3], ip[2], ip[1], ip[0], strings.ToUpper(fmt.Sprintf("%04s", strconv.FormatInt(int64(a.Port), 16))))
}
