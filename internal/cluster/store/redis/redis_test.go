package redis_test

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	redigo "github.com/gomodule/redigo/redis"
	"go.uber.org/goleak"

	"github.com/sluice-router/sluice/internal/cluster/store"
	"github.com/sluice-router/sluice/internal/cluster/store/redis"
	"github.com/sluice-router/sluice/internal/cluster/store/storetest"
	"github.com/sluice-router/sluice/test/process"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(process.Spawner))
}

// open opens the store of a cluster. url has everything in front of the address.
func open(t testing.TB, url, cluster string) store.Store {
	t.Helper()
	u, err := store.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	s, err := redis.New(u, cluster)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestRedis(t *testing.T)  { run(t, storetest.StartRedis(t)) }
func TestValkey(t *testing.T) { run(t, storetest.StartValkey(t)) }

func run(t *testing.T, server *storetest.Server) {
	t.Parallel()
	storetest.Run(t, &storetest.Bed{
		Open: func(t testing.TB, address, cluster string) store.Store {
			return open(t, server.Scheme+"://"+address, cluster)
		},
		Address: server.Address,
		Faults:  server,
	})
}

// library speaks to the server, for what a store does not do.
func library(t *testing.T, server *storetest.Server) func(command string, args ...any) any {
	t.Helper()
	c, err := redigo.Dial("tcp", server.Address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return func(command string, args ...any) any {
		t.Helper()
		answer, err := c.Do(command, args...)
		if err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		return answer
	}
}

func TestWhatIsNoRecordIsLeftAlone(t *testing.T) {
	t.Parallel()
	server := storetest.StartRedis(t)
	do := library(t, server)
	const key = "sluice:gate:gate"
	s := open(t, server.URL(), "gate")
	storetest.Foreign(t, s, func(junk []byte) { do("SET", key, junk) }, func() []byte { return do("GET", key).([]byte) })
	revision := store.NewRevision()
	for what, put := range map[string]func(){
		"a list":                       func() { do("RPUSH", key, "x") },
		"a hash without a revision":    func() { do("HSET", key, "value", "x") },
		"a hash with a wrong revision": func() { do("HSET", key, "revision", "12", "value", "x") },
		"a value that is too large":    func() { do("HSET", key, "revision", revision, "value", strings.Repeat("x", store.MaxValue+1)) },
	} {
		do("DEL", key)
		put()
		if r, err := s.Read(t.Context()); !errors.Is(err, store.ErrForeign) {
			t.Errorf("%s: %.40v, %v", what, r, err)
		}
		if _, err := s.Write(t.Context(), []byte("mine"), ""); !errors.Is(err, store.ErrForeign) && !errors.Is(err, store.ErrConflict) {
			t.Errorf("a write over %s: %v", what, err)
		}
	}
}

func TestUsers(t *testing.T) {
	t.Parallel()
	server := storetest.StartRedis(t)
	do := library(t, server)
	do("ACL", "SETUSER", "router", "on", ">p@ss/router", "~sluice:gate:gate", "+eval", "+type", "+hget", "+hset", "+hstrlen", "+select")
	do("ACL", "SETUSER", "stranger", "on", ">p@ss/stranger", "~other:*", "+@all")
	do("ACL", "SETUSER", "default", ">p@ss")

	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("p@ss/router\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := server.Address
	revision, err := open(t, "redis://router:p%40ss%2Frouter@"+at+"/2", "gate").Write(t.Context(), []byte("one"), "")
	if err != nil {
		t.Fatal(err)
	}
	for what, s := range map[string]store.Store{
		"the password in a file":      open(t, "redis://router@"+at+"/2?password-file="+file, "gate"),
		"the user that has no name":   open(t, "redis://:p%40ss@"+at+"/2", "gate"),
		"the same user with its name": open(t, "redis://default:p%40ss@"+at+"/2", "gate"),
	} {
		if r, err := s.Read(t.Context()); err != nil || r.Revision != revision {
			t.Errorf("%s: %+v, %v", what, r, err)
		}
	}
	if r, err := open(t, "redis://:p%40ss@"+at, "gate").Read(t.Context()); err != nil || r.Revision != "" {
		t.Errorf("another database: %+v, %v", r, err)
	}
	for what, s := range map[string]store.Store{
		"no user":                open(t, "redis://"+at+"/2", "gate"),
		"a wrong password":       open(t, "redis://router:wrong@"+at+"/2", "gate"),
		"a wrong password alone": open(t, "redis://:wrong@"+at+"/2", "gate"),
		"no permission":          open(t, "redis://stranger:p%40ss%2Fstranger@"+at+"/2", "gate"),
		"another cluster's":      open(t, "redis://router:p%40ss%2Frouter@"+at+"/2", "other"),
		"no such database":       open(t, "redis://:p%40ss@"+at+"/99", "gate"),
		"no file of password":    open(t, "redis://router@"+at+"?password-file="+file+"x", "gate"),
	} {
		if _, err := s.Read(t.Context()); !errors.Is(err, store.ErrRefused) || errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: a read: %v", what, err)
		}
		if _, err := s.Write(t.Context(), []byte("two"), revision); !errors.Is(err, store.ErrRefused) || errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: a write: %v", what, err)
		}
	}
}

// A server that has become a replica takes no writes. When it is the primary again, or its
// address another server's, the store goes on.
func TestAReplicaIsNotAvailable(t *testing.T) {
	t.Parallel()
	primary, server := storetest.StartRedis(t), storetest.StartRedis(t)
	do := library(t, server)
	s := open(t, server.URL(), "gate")
	revision, err := s.Write(t.Context(), []byte("one"), "")
	if err != nil {
		t.Fatal(err)
	}
	do("CONFIG", "SET", "min-replicas-to-write", "1")
	if _, err := s.Write(t.Context(), []byte("two"), revision); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a write without the replicas that are wanted: %v", err)
	}
	do("CONFIG", "SET", "min-replicas-to-write", "0")
	host, port, _ := net.SplitHostPort(primary.Address)
	do("REPLICAOF", host, port)
	if _, err := s.Write(t.Context(), []byte("two"), revision); !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrConflict) {
		t.Errorf("a write to a replica: %v", err)
	}
	do("REPLICAOF", "NO", "ONE")
	r, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write(t.Context(), []byte("three"), r.Revision); err != nil {
		t.Errorf("a write to the primary: %v", err)
	}
}

// A server of a Redis Cluster that does not have the record says who has.
func TestRedisCluster(t *testing.T) {
	t.Parallel()
	server := storetest.StartRedis(t, "--cluster-enabled", "yes")
	do := library(t, server)
	s := open(t, server.URL(), "gate")
	if _, err := s.Read(t.Context()); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a cluster without its slots: %v", err)
	}
	do("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		_, err := s.Write(t.Context(), []byte("one"), "")
		if err == nil {
			break
		}
		if !errors.Is(err, store.ErrUnavailable) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	ours, others := storetest.NewAuthority(t), storetest.NewAuthority(t)
	cert, key := ours.Issue(t, "redis.example.com")
	address := storetest.FreeAddress(t)
	_, port, _ := net.SplitHostPort(address)
	plain := storetest.StartRedis(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ours.File)
	myCert, myKey := ours.Issue(t, "router")
	mine := "&cert=" + myCert + "&key=" + myKey
	url := "rediss://" + address + "?server-name=redis.example.com&ca="
	revision, err := open(t, url+ours.File+mine, "gate").Write(t.Context(), []byte("one"), "")
	if err != nil {
		t.Fatal(err)
	}
	for what, url := range map[string]string{
		"an unknown authority":          url + others.File + mine,
		"a certificate that is not its": "rediss://" + address + "?ca=" + ours.File + mine,
		"an authority that is no file":  url + ours.File + "x",
	} {
		if _, err := open(t, url, "gate").Read(t.Context()); !errors.Is(err, store.ErrRefused) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, url := range map[string]string{
		"no certificate of the client":      url + ours.File,
		"a client without TLS":              "redis://" + address,
		"TLS with a server that has no TLS": "rediss://" + plain.Address,
	} {
		if _, err := open(t, url, "gate").Read(t.Context()); err == nil {
			t.Errorf("%s: the record was read", what)
		}
	}
	if r, err := open(t, url+ours.File+mine, "gate").Read(t.Context()); err != nil || r.Revision != revision {
		t.Errorf("read %+v, %v", r, err)
	}
}

// Whatever answers at the address, a call ends with an error.
func TestAnswersThatAreNoRedis(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{
		"", "HTTP/1.1 400 Bad Request\r\n\r\n", "*1\r\n$-1\r\n", "*0\r\n", "*-1\r\n", "$-1\r\n", ":1\r\n", "+OK\r\n", "*3\r\n$6\r\nrecord\r\n$1\r\nx\r\n$1\r\ny\r\n",
		"*2\r\n$6\r\nrecord\r\n$1\r\nx\r\n", "*1\r\n*1\r\n:1\r\n", "*1\r\n$8\r\nconflict\r\n", "-\r\n", "-ERR\r\n", "\r\n", strings.Repeat("x", 100_000),
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var serving sync.WaitGroup
		serving.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.Read(make([]byte, 8<<10))
				io.WriteString(c, answer)
				c.Close()
			}
		})
		s := open(t, "redis://"+l.Addr().String(), "gate")
		if r, err := s.Read(t.Context()); err == nil {
			t.Errorf("%.40q was read as %+v", answer, r)
		}
		if _, err := s.Write(t.Context(), []byte("x"), ""); err == nil {
			t.Errorf("%.40q was taken for a success", answer)
		}
		s.Close()
		l.Close()
		serving.Wait()
	}
}
