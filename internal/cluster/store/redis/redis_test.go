package redis_test

import (
	"testing"

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
