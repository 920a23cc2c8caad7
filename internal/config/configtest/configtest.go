// Package configtest makes configurations for tests: the defaults of the schema
// with changes, so that no test depends on a value that an operator cannot have.
package configtest

import (
	"reflect"

	"github.com/sluice-router/sluice/internal/config"
)

// New is the default configuration after change, which may be nil.
func New(change func(c *config.Config)) *config.Config {
	c := config.Default()
	if change != nil {
		change(c)
	}
	return c
}

// Overlay sets the fields of a group, such as c.Health, to those of changes that
// are not zero.
func Overlay[T any](group *T, changes T) {
	to, from := reflect.ValueOf(group).Elem(), reflect.ValueOf(changes)
	for i := range to.NumField() {
		if f := from.Field(i); !f.IsZero() {
			to.Field(i).Set(f)
		}
	}
}
