package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-router/sluice/internal/cluster/store"
)

func TestURLs(t *testing.T) {
	for text, want := range map[string]store.URL{
		"etcd://a:1,b,[::1]:3,[::2]":               {Scheme: "etcd", Kind: store.Etcd, Hosts: []string{"a:1", "b:2379", "[::1]:3", "[::2]:2379"}},
		"etcd://me:p%40ss%2Fword%23@a":             {Scheme: "etcd", Kind: store.Etcd, Hosts: []string{"a:2379"}, User: "me", Password: "p@ss/word#"},
		"etcds://a:1/?ca=/x&cert=/c&key=/k":        {Scheme: "etcds", Kind: store.Etcd, Hosts: []string{"a:1"}, TLS: true, CA: "/x", Cert: "/c", Key: "/k"},
		"etcd://me@a?password-file=/run/secrets/p": {Scheme: "etcd", Kind: store.Etcd, Hosts: []string{"a:2379"}, User: "me", PasswordFile: "/run/secrets/p"},
		"redis://a":                    {Scheme: "redis", Kind: store.Redis, Hosts: []string{"a:6379"}},
		"redis://:secret@10.0.0.1:7/3": {Scheme: "redis", Kind: store.Redis, Hosts: []string{"10.0.0.1:7"}, Password: "secret", Database: 3},
		"rediss://u:p@a:7?server-name=redis.example.com": {Scheme: "rediss", Kind: store.Redis, Hosts: []string{"a:7"}, TLS: true, User: "u", Password: "p", ServerName: "redis.example.com"},
		"valkey://a:1":         {Scheme: "valkey", Kind: store.Redis, Hosts: []string{"a:1"}},
		"valkeys://a":          {Scheme: "valkeys", Kind: store.Redis, Hosts: []string{"a:6379"}, TLS: true},
		"kubernetes://serving": {Scheme: "kubernetes", Kind: store.Kubernetes, Namespace: "serving"},
		"kubernetes://":        {Scheme: "kubernetes", Kind: store.Kubernetes},
	} {
		got, err := store.ParseURL(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", text, diff)
		}
	}
}

// What is wrong is told without the password, which is "hush" in all of these.
func TestWrongURLs(t *testing.T) {
	for text, want := range map[string]string{
		"":                                 "etcd://HOST",
		"a:1":                              "etcd://HOST",
		"http://me:hush@a:1":               "etcd://HOST",
		"etcd://":                          "no HOST:PORT",
		"etcd://a,":                        "no HOST:PORT",
		"etcd://a:x":                       "no HOST:PORT",
		"etcd://a:0":                       "no HOST:PORT",
		"etcd://a:70000":                   "no HOST:PORT",
		"etcd://::1":                       "no HOST:PORT",
		"etcd://a,a:2379":                  "named twice",
		"etcd://a/gate":                    "has no meaning",
		"etcd://me@a":                      "go together",
		"etcd://:hush@a":                   "go together",
		"etcd://me:hu/sh@a":                "%XX",
		"etcd://me:hush%zz@a":              "%XX",
		"etcd://me:hush@a#x":               "%23",
		"etcd://a?lease=5":                 `no setting "lease"`,
		"etcd://a?ca=/x":                   "write etcds://",
		"etcds://a?cert=/x":                "cert and key",
		"etcds://a?ca=":                    "named once",
		"etcds://a?ca=/x&ca=/y":            "named once",
		"etcd://a?%zz":                     "NAME=VALUE",
		"redis://a,b":                      "one address",
		"redis://a/x":                      "no number",
		"redis://:hush@a?password-file=":   "named once",
		"redis://:hush@a?password-file=/x": "both a password",
		"kubernetes://Name":                "no name of a namespace",
		"kubernetes://me:hush@n":           "no user",
		"kubernetes://n/lease":             "has no meaning",
		"kubernetes://n?ca=/x":             `no setting "ca"`,
		"etcd://" + strings.TrimSuffix(strings.Repeat("a,", 17), ","): "named twice",
		"etcd://a1,a2,a3,a4,a5,a6,a7,a8,a9,b1,b2,b3,b4,b5,b6,b7,b8":   "17 addresses",
	} {
		_, err := store.ParseURL(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestURLForLogsHasNoSecrets(t *testing.T) {
	u, err := store.ParseURL("rediss://me:hush@a:1/3?ca=/x")
	if err != nil || u.String() != "rediss://a:1/3" {
		t.Fatalf("%s, %v", u, err)
	}
}

// Files count as they are when a connection is made.
func TestFilesOfURLs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	u, err := store.ParseURL("rediss://me@a?password-file=" + file + "&ca=" + file)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := u.Credentials(); !errors.Is(err, store.ErrRefused) {
		t.Errorf("no file of the password: %v", err)
	}
	if _, err := u.TLSConfig(); !errors.Is(err, store.ErrRefused) {
		t.Errorf("no file of the authorities: %v", err)
	}
	for _, password := range []string{"one", "two"} {
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if user, got, err := u.Credentials(); user != "me" || got != password || err != nil {
			t.Errorf("read %q, %q, %v", user, got, err)
		}
	}
	if _, err := u.TLSConfig(); !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), "no certificate") {
		t.Errorf("authorities that are none: %v", err)
	}
}

// No URL ends the program, and what its String says can be read again.
func FuzzURL(f *testing.F) {
	for _, text := range []string{"etcd://me:p%40ss@a:1,[::1]:3?password-file=/x", "rediss://:s@a:7/3?ca=/x&server-name=b", "kubernetes://serving", "valkey://a", "etcd://"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, err := store.ParseURL(text)
		if err != nil {
			return
		}
		again, err := store.ParseURL(u.String())
		if err != nil {
			t.Fatalf("%q is %q, which is %v", text, u, err)
		}
		if diff := cmp.Diff(u.Hosts, again.Hosts); diff != "" || again.Namespace != u.Namespace || again.Database != u.Database || again.User != "" || again.Password != "" {
			t.Fatalf("%q is %q: %+v", text, u, again)
		}
	})
}
