package main

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine/dialects"
)

// The configuration, which knows no engines, takes the names of those that there are,
// and of their connectors.
func TestDialectsOfTheSchema(t *testing.T) {
	worker := reflect.TypeFor[config.Worker]()
	for field, names := range map[string][]string{
		"Backend": dialects.All().Names(), "KVConnector": dialects.All().ConnectorNames(),
	} {
		f, _ := worker.FieldByName(field)
		choices := strings.Split(f.Tag.Get("choices"), "|")
		if want := append([]string{"auto"}, names...); !slices.Equal(choices, want) {
			t.Errorf("%s: the schema has the choices %q, the engines are %q", field, choices, want)
		}
	}
}
