package etcd_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/sluice-router/sluice/internal/cluster/store"
	"github.com/sluice-router/sluice/internal/cluster/store/etcd"
	"github.com/sluice-router/sluice/internal/cluster/store/storetest"
	"github.com/sluice-router/sluice/test/process"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(process.Spawner))
}

func open(t testing.TB, url, cluster string) store.Store {
	t.Helper()
	u, err := store.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	s, err := etcd.New(u, cluster)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestEtcd(t *testing.T) {
	t.Parallel()
	server := storetest.StartEtcd(t)
	storetest.Run(t, &storetest.Bed{
		Open: func(t testing.TB, address, cluster string) store.Store {
			return open(t, "etcd://"+address, cluster)
		},
		Address: server.Address,
		Faults:  server,
	})
}

// An endpoint that refuses connections, and one that takes them and is silent, cost a
// part of the time once; the one that serves is asked first afterwards.
func TestOneEndpointThatServesIsEnough(t *testing.T) {
	t.Parallel()
	server := storetest.StartEtcd(t)
	silent, refused := storetest.StartProxy(t, server.Address), storetest.StartProxy(t, server.Address)
	s := open(t, "etcd://"+strings.Join([]string{refused.Address, silent.Address, server.Address}, ","), "gate")
	silent.Set(storetest.Swallow)
	refused.Set(storetest.Refuse)
	revision, err := s.Write(t.Context(), []byte("one"), "")
	if err != nil {
		t.Fatal(err)
	}
	if r, err := s.Read(t.Context()); err != nil || r.Revision != revision {
		t.Fatalf("read %+v, %v", r, err)
	}
	// Those that refuse connections cost next to nothing.
	hosts := []string{}
	for i := range 12 {
		hosts = append(hosts, fmt.Sprintf("127.0.0.%d:1", i+1))
	}
	many := open(t, "etcd://"+strings.Join(append(hosts, server.Address), ","), "gate")
	if r, err := many.Read(t.Context()); err != nil || r.Revision != revision {
		t.Fatalf("read %+v, %v", r, err)
	}
	// The one that serves falls silent: reads go on through another.
	silent.Set(storetest.Pass)
	only := open(t, "etcd://"+silent.Address+","+server.Address, "gate")
	if _, err := only.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	silent.Set(storetest.Swallow)
	if r, err := only.Read(t.Context()); err != nil || r.Revision != revision {
		t.Fatalf("read %+v, %v", r, err)
	}
	// So do writes.
	silent.Set(storetest.Pass)
	only = open(t, "etcd://"+silent.Address+","+server.Address, "gate")
	if _, err := only.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	silent.Set(storetest.CutAnswers)
	if _, err := only.Write(t.Context(), []byte("two"), revision); err != nil {
		t.Fatalf("the answer of one endpoint was lost, the other serves: %v", err)
	}
	if r, err := s.Read(t.Context()); err != nil || string(r.Value) != "two" {
		t.Fatalf("read %+v, %v", r, err)
	}
}

// Of three members of etcd one may be away, frozen or killed, whichever it is: what is
// written is read through each of the others.
func TestAnyMemberOfEtcdMayFail(t *testing.T) {
	t.Parallel()
	members := storetest.StartEtcdCluster(t, 3)
	addresses := make([]string, len(members))
	for i, m := range members {
		addresses[i] = m.Address
	}
	s := open(t, "etcd://"+strings.Join(addresses, ","), "gate")
	// next writes once: while a leader is elected calls fail.
	var last store.Record
	next := func(value string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			r, err := s.Read(t.Context())
			if err == nil && r.Revision != last.Revision && string(r.Value) != value {
				t.Fatalf("read %+v after %+v", r, last)
			}
			if err == nil && string(r.Value) == value {
				last = r // by a call whose answer was lost
				return
			}
			if err == nil {
				if _, err = s.Write(t.Context(), []byte(value), r.Revision); errors.Is(err, store.ErrConflict) {
					t.Fatalf("nobody else writes: %v", err)
				}
			}
			if err != nil && time.Now().After(end) {
				t.Fatalf("cannot write %s: %v", value, err)
			}
		}
	}
	next("first")
	for i, m := range members {
		m.Freeze()
		next(fmt.Sprint("frozen ", i))
		m.Thaw()
		// The one that was away answers with what is the newest.
		only := open(t, "etcd://"+m.Address, "gate")
		for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			r, err := only.Read(t.Context())
			if err == nil && r.Revision == last.Revision {
				break
			}
			if err == nil || time.Now().After(end) {
				t.Fatalf("member %d has %+v, %v, want %+v", i, r, err, last)
			}
		}
		m.Kill()
		next(fmt.Sprint("killed ", i))
		m.Start()
	}
}

// library is etcd's own client, for what a store does not do.
func library(t *testing.T, server *storetest.Server, user, password string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{server.Address}, Username: user, Password: password, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestWhatIsNoRecordIsLeftAlone(t *testing.T) {
	t.Parallel()
	server := storetest.StartEtcd(t)
	c := library(t, server, "", "")
	const key = "/sluice/gate/gate"
	storetest.Foreign(t, open(t, "etcd://"+server.Address, "gate"), func(junk []byte) {
		must[*clientv3.PutResponse](t)(c.Put(t.Context(), key, string(junk)))
	}, func() []byte {
		return must[*clientv3.GetResponse](t)(c.Get(t.Context(), key)).Kvs[0].Value
	})
	// Larger than what etcd takes from most.
	revision := store.NewRevision()
	for _, junk := range []string{"sluice-gate " + revision, "sluice-gate " + revision + "\n" + strings.Repeat("x", store.MaxValue+1), strings.Repeat("x", 1<<20)} {
		must[*clientv3.PutResponse](t)(c.Put(t.Context(), key, junk))
		if r, err := open(t, "etcd://"+server.Address, "gate").Read(t.Context()); !errors.Is(err, store.ErrForeign) {
			t.Errorf("%.60q was read: %+v, %v", junk, r, err)
		}
	}
}

func TestUsers(t *testing.T) {
	t.Parallel()
	server := storetest.StartEtcd(t)
	c := library(t, server, "", "")
	must[*clientv3.AuthRoleAddResponse](t)(c.RoleAdd(t.Context(), "gate"))
	must[*clientv3.AuthRoleGrantPermissionResponse](t)(c.RoleGrantPermission(t.Context(), "gate", "/sluice/gate/gate", "", clientv3.PermissionType(clientv3.PermReadWrite)))
	for _, u := range []string{"root", "router", "stranger"} {
		must[*clientv3.AuthUserAddResponse](t)(c.UserAdd(t.Context(), u, "p@ss/"+u))
	}
	must[*clientv3.AuthUserGrantRoleResponse](t)(c.UserGrantRole(t.Context(), "root", "root"))
	must[*clientv3.AuthUserGrantRoleResponse](t)(c.UserGrantRole(t.Context(), "router", "gate"))
	must[*clientv3.AuthEnableResponse](t)(c.AuthEnable(t.Context()))

	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("p@ss/router\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := server.Address
	good := open(t, "etcd://router:p%40ss%2Frouter@"+at, "gate")
	revision := must[string](t)(good.Write(t.Context(), []byte("one"), ""))
	if r := must[store.Record](t)(open(t, "etcd://router@"+at+"?password-file="+file, "gate").Read(t.Context())); r.Revision != revision {
		t.Errorf("with the password in a file: %+v", r)
	}
	for what, s := range map[string]store.Store{
		"no user":             open(t, "etcd://"+at, "gate"),
		"a wrong password":    open(t, "etcd://router:wrong@"+at, "gate"),
		"an unknown user":     open(t, "etcd://nobody:wrong@"+at, "gate"),
		"no permission":       open(t, "etcd://stranger:p%40ss%2Fstranger@"+at, "gate"),
		"another cluster's":   open(t, "etcd://router:p%40ss%2Frouter@"+at, "other"),
		"no file of password": open(t, "etcd://router@"+at+"?password-file="+file+"x", "gate"),
	} {
		if _, err := s.Read(t.Context()); !errors.Is(err, store.ErrRefused) || errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: a read: %v", what, err)
		}
		if _, err := s.Write(t.Context(), []byte("two"), revision); !errors.Is(err, store.ErrRefused) || errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: a write: %v", what, err)
		}
	}
	// A token that the server does not know any more is asked for again: while the
	// connection lasts, and after a restart.
	root := library(t, server, "root", "p@ss/root")
	must[*clientv3.AuthDisableResponse](t)(root.AuthDisable(t.Context()))
	must[*clientv3.AuthEnableResponse](t)(root.AuthEnable(t.Context()))
	if r := must[store.Record](t)(good.Read(t.Context())); r.Revision != revision {
		t.Errorf("with a token that is not known: %+v", r)
	}
	server.Kill()
	server.Start()
	if r := must[store.Record](t)(good.Read(t.Context())); r.Revision != revision {
		t.Errorf("after a restart: %+v", r)
	}
	must[string](t)(good.Write(t.Context(), []byte("two"), revision))
}

func TestTLS(t *testing.T) {
	t.Parallel()
	ours, others := storetest.NewAuthority(t), storetest.NewAuthority(t)
	cert, key := ours.Issue(t, "etcd.example.com")
	server := storetest.StartEtcd(t, "--cert-file", cert, "--key-file", key, "--client-cert-auth", "--trusted-ca-file", ours.File)
	myCert, myKey := ours.Issue(t, "router")
	otherCert, otherKey := others.Issue(t, "router")
	mine := "&cert=" + myCert + "&key=" + myKey
	url := "etcds://" + server.Address + "?server-name=etcd.example.com&ca="
	revision := must[string](t)(open(t, url+ours.File+mine, "gate").Write(t.Context(), []byte("one"), ""))
	for what, url := range map[string]string{
		"an unknown authority":          url + others.File + mine,
		"a certificate that is not its": "etcds://" + server.Address + "?ca=" + ours.File + mine,
		"an authority that is no file":  url + ours.File + "x",
	} {
		_, err := open(t, url, "gate").Read(t.Context())
		if !errors.Is(err, store.ErrRefused) {
			t.Errorf("%s: %v", what, err)
		}
	}
	plain := storetest.StartEtcd(t)
	// The other side hangs up, and what is told of that depends on when.
	for what, url := range map[string]string{
		"no certificate of the client":      url + ours.File,
		"a client of another authority":     url + ours.File + "&cert=" + otherCert + "&key=" + otherKey,
		"a client without TLS":              "etcd://" + server.Address,
		"TLS with a server that has no TLS": "etcds://" + plain.Address,
	} {
		if _, err := open(t, url, "gate").Read(t.Context()); err == nil {
			t.Errorf("%s: the record was read", what)
		}
	}
	if r := must[store.Record](t)(open(t, url+ours.File+mine, "gate").Read(t.Context())); r.Revision != revision {
		t.Errorf("read %+v", r)
	}
}
