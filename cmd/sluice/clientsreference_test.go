package main

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestClientsReferenceIsUpToDate(t *testing.T) {
	code, stdout, stderr := sluice(t, nil, "clients-reference")
	if code != exitOK || stderr != "" {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	committed, err := os.ReadFile("../../docs/clients.md")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(committed), stdout); d != "" {
		t.Errorf("docs/clients.md is behind the code; run make docs\n%s", d)
	}
}
