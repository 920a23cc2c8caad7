package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/demo"
)

// Three routers keep one limit, and answer every request, while the one that decides is
// killed and comes back.
func TestDemoOfThreeRouters(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := demo.RunRouters(t.Context(), demo.Options{Out: &out, Routers: 3, PrefillTime: 200 * time.Millisecond, StartMember: new(demoCluster).start})
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"decides for all. It is killed.", "was started again and has joined.", "All results are as they must be."} {
		if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), want) {
			t.Errorf("%s\nwant %s", out.String(), want)
		}
	}
}

func TestDemoOptions(t *testing.T) {
	for args, want := range map[string]string{
		"demo --routers 1":        "--routers must be from 2 to 9",
		"demo --routers 10":       "--routers must be from 2 to 9",
		"demo --routers 3 --keep": "--keep is for the demo of one router",
	} {
		if code, _, stderr := sluice(t, nil, strings.Fields(args)...); code != 2 || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit %d, %s; want %s", args, code, stderr, want)
		}
	}
}
