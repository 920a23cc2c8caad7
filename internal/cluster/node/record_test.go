package node

import (
	"encoding/json"
	"testing"

	"github.com/sluice-router/sluice/internal/cluster"
)

// A store that shows people who holds it is told the keeper, not who wrote.
func TestKeeperOfARecord(t *testing.T) {
	record := cluster.Record{Format: 1, Members: []cluster.Member{{Name: "a:1", Incarnation: 10}, {Name: "b:1", Incarnation: 11}}}
	for keeper, want := range map[cluster.Incarnation]string{10: "a:1", 11: "b:1", 12: ""} {
		record.Epoch = cluster.Epoch{Number: 3, Keeper: keeper}
		value, err := json.Marshal(&record)
		if err != nil {
			t.Fatal(err)
		}
		if got := KeeperOf(value); got != want {
			t.Errorf("%s: %q, want %q", value, got, want)
		}
	}
	if got := KeeperOf([]byte("x")); got != "" {
		t.Errorf("no record: %q", got)
	}
}
