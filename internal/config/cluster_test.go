package config

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Each thing that is wrong with the options of a cluster has a message of its own.
func TestRefusalsOfCluster(t *testing.T) {
	const on = "--cluster~etcd://a:2379~"
	f := files{"s": "0123456789abcdef", "short": "0123456789", "empty": "", "cert": "x", "ca": "x"}
	for _, tc := range []struct{ args, yaml, want string }{
		{args: "--cluster~http://a:1", want: `flag --cluster: cluster.cluster: "http://a:1": the coordinator is to be etcd://HOST:PORT,…, redis://HOST:PORT, valkey://HOST:PORT or kubernetes://NAMESPACE`},
		{args: "--cluster~a:2379", want: `flag --cluster: cluster.cluster: "a:2379": the coordinator is to be etcd://`},
		{args: "--cluster~etcd://", want: `flag --cluster: cluster.cluster: "etcd://": "" is no HOST:PORT of a coordinator`},
		{args: "--cluster~etcd://a:2379,b:0", want: `"b:0" is no HOST:PORT of a coordinator`},
		{args: "--cluster~redis://me:pass word@a:1", want: `flag --cluster: cluster.cluster: "redis://<hidden>@a:1": a space`},
		{args: "--cluster~redis://me:pass@a:x", want: `flag --cluster: cluster.cluster: "redis://<hidden>@a:x": `},
		{args: "--cluster~kubernetes://A_b", want: `this is no name of a namespace`},
		{args: on + "--cluster-name~a b", want: `flag --cluster-name: cluster.cluster_name: "a b": must be 1 to 63 lowercase letters, digits and -, with a letter or digit at both ends`},
		{args: on + "--cluster-name~A", want: `must be 1 to 63 lowercase letters, digits and -, with a letter or digit at both ends`},
		{args: "--cluster-name~a", want: `flag --cluster-name: cluster.cluster_name: "a": needs --cluster; without it this router is alone`},
		{yaml: "cluster: {cluster_lease_secs: 6}", want: `c.yaml:1: cluster.cluster_lease_secs: "6": needs cluster.cluster; without it this router is alone`},
		{yaml: "cluster: {cluster_secret: 0123456789abcdef}", want: `c.yaml:1: cluster.cluster_secret: "<hidden>": needs cluster.cluster; without it this router is alone`},
		{args: on + "--cluster-patience-secs~4", want: `flag --cluster-patience-secs: cluster.cluster_patience_secs: "4": must not be less than --cluster-lease-secs, which is 5`},
		{args: on + "--cluster-lost-secs~4", want: `flag --cluster-lost-secs: cluster.cluster_lost_secs: "4": must not be less than --cluster-lease-secs, which is 5`},
		{args: on + "--cluster-lease-secs~100", want: `flag --cluster-lease-secs: cluster.cluster_lease_secs: "100": must not be more than --cluster-lost-secs, which is 60`},
		{args: on + "--cluster-lease-secs~1", want: `flag --cluster-lease-secs: cluster.cluster_lease_secs: "1": must be from 2 to 600 seconds`},
		{args: on + "--cluster-fallback~alone", want: `flag --cluster-fallback: cluster.cluster_fallback: "alone": must be one of share, refuse`},
		{args: on + "--cluster-listen~7400", want: `flag --cluster-listen: cluster.cluster_listen: "7400": must be HOST:PORT, an IPv6 address in brackets`},
		{args: on + "--cluster-listen~127.0.0.1:70000", want: `flag --cluster-listen: cluster.cluster_listen: "127.0.0.1:70000": has no port from 1 to 65535`},
		{args: on + "--cluster-listen~:7400~--cluster-secret-file~s", want: `flag --cluster-listen: cluster.cluster_listen: ":7400": is on all interfaces, so that it needs --cluster-advertise: the address at which the others reach this member`},
		{args: on + "--cluster-listen~[::]:7400~--cluster-advertise~0.0.0.0:7400~--cluster-secret-file~s", want: `flag --cluster-advertise: cluster.cluster_advertise: "0.0.0.0:7400": is no address at which others can reach this member: name one of its own`},
		{args: on + "--cluster-advertise~a/b:1", want: `flag --cluster-advertise: cluster.cluster_advertise: "a/b:1": has no valid host`},
		{args: on + "--cluster-listen~10.0.0.1:7400", want: `flag --cluster-listen: cluster.cluster_listen: "10.0.0.1:7400": is not on the loopback interface: it needs --cluster-secret-file, or --cluster-tls-cert-file with its key and authority, so that nobody else becomes a member`},
		{args: on + "--cluster-advertise~10.0.0.1:7400", want: `flag --cluster-advertise: cluster.cluster_advertise: "10.0.0.1:7400": is not on the loopback interface: it needs --cluster-secret-file`},
		{args: on + "--cluster-secret-file~nowhere", want: `flag --cluster-secret-file: cluster.cluster_secret_file: "nowhere": cannot read it: open nowhere: file does not exist`},
		{args: on + "--cluster-listen~10.0.0.1:7400~--cluster-secret-file~nowhere", want: `cluster.cluster_secret_file: "nowhere": cannot read it: open nowhere: file does not exist`},
		{args: on + "--cluster-secret-file~empty", want: `flag --cluster-secret-file: cluster.cluster_secret_file: "empty": holds no key`},
		{args: on + "--cluster-secret-file~short", want: `flag --cluster-secret-file: cluster.cluster_secret_file: is a secret of less than 16 bytes`},
		{args: on + "--cluster-tls-cert-file~cert", want: `flag --cluster-tls-cert-file: cluster.cluster_tls_cert_file: "cert": needs --cluster-tls-key-file as well: members prove to each other who they are`},
		{args: on + "--cluster-tls-cert-file~cert~--cluster-tls-key~cert", want: `"cert": needs --cluster-tls-ca-file as well: members prove to each other who they are`},
		{args: on + "--cluster-tls-cert~cert~--cluster-tls-key~cert~--cluster-tls-ca~ca~--cluster-secret-file~s", want: `cluster.cluster_tls_cert_file: "cert": does not go with a secret of the cluster (cluster_secret_file); use one of them, the same for all members`},
		{args: "--config-generation~-1", want: `flag --config-generation: config_generation: "-1": must be 0 or more`},
	} {
		words := strings.Split(tc.args, "~")
		if tc.args == "" {
			words = nil
		}
		if tc.yaml != "" {
			words, f["c.yaml"] = append(words, "--config", "c.yaml"), tc.yaml
		}
		_, _, err := Load(words, nil, f.read)
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s%s:\n%v\nwant\n%s", tc.args, tc.yaml, err, tc.want)
		}
	}
}

func TestCertificatesOfClusterAreRead(t *testing.T) {
	_, _, err := Load(strings.Fields("--cluster etcd://a:1 --cluster-tls-cert cert --cluster-tls-key cert --cluster-tls-ca ca"), nil, files{"cert": "x", "ca": "x"}.read)
	for _, want := range []string{`"cert": does not go with the key in "cert": `, `"ca": holds no certificate in PEM form`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
}

// What is taken, and what follows from it.
func TestClusterSettings(t *testing.T) {
	f := files{"s": "0123456789abcdef\n"}
	for args, patience := range map[string]time.Duration{
		"--cluster etcd://a:2379,b:2379,[::1]:2379":                         5 * time.Second,
		"--cluster valkey://me:p%40ss%2Fw@a:6379/2 --cluster-lease-secs 20": 20 * time.Second,
		"--cluster kubernetes://ns --cluster-lease-secs 3":                  5 * time.Second,
		"--cluster rediss://a:1 --cluster-lease-secs 3 --cluster-patience-secs 4 --cluster-listen 127.0.0.1:0 --cluster-advertise localhost:0": 4 * time.Second,
		"--cluster etcd://a:1 --cluster-listen :7400 --cluster-advertise sluice-0.sluice:7400 --cluster-secret-file s":                         5 * time.Second,
		"--cluster etcd://a:1 --cluster-listen 10.0.0.1:7400 --cluster-secret-file s":                                                          5 * time.Second,
	} {
		c, warnings, err := Load(strings.Fields(args), nil, f.read)
		if err != nil || len(warnings) > 0 {
			t.Errorf("%s: %v %v", args, err, warnings)
			continue
		}
		if c.Cluster.Patience != patience || !c.Cluster.Enabled() {
			t.Errorf("%s: patience %s, want %s", args, c.Cluster.Patience, patience)
		}
	}
}

// The URL of a store may hold a password, and what is printed is seen by more people.
func TestSecretsOfClusterAreNotPrinted(t *testing.T) {
	c := mustLoad(t, "--cluster rediss://me:hunter2@a:6379?ca=/hunter3 --config c.yaml", nil, files{"c.yaml": "cluster: {cluster_secret: hunter4hunter4hunter4}\nconfig_generation: 7\n"})
	var b bytes.Buffer
	if err := c.WriteEffective(&b); err != nil {
		t.Fatal(err)
	}
	if got := b.String(); strings.Contains(got, "hunter") || !strings.Contains(got, `cluster: rediss://a:6379 `) || !strings.Contains(got, "\nconfig_generation: 7  # c.yaml:2\n") {
		t.Error(got)
	}
	if got := c.Cluster.URL.String(); strings.Contains(got, "hunter") {
		t.Error(got)
	}
}

// A secret that every user of the machine can read is told, and a mounted Secret with
// links in it is judged by the files they lead to.
func TestSecretThatAllCanReadIsWarnedOf(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	for mode, want := range map[os.FileMode]bool{0o600: false, 0o640: false, 0o644: true} {
		file := filepath.Join(dir, mode.String())
		if err := os.WriteFile(file, []byte("0123456789abcdef"), mode); err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(link)
		if err := os.Symlink(file, link); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{file, link} {
			_, warnings, err := Load([]string{"--cluster", "etcd://a:1", "--cluster-secret-file", name}, nil, nil)
			if err != nil || (len(warnings) > 0) != want {
				t.Errorf("%s: %v, warnings %v", name, err, warnings)
			}
			if want && !strings.Contains(warnings[0].String(), "can be read by every user of this machine") {
				t.Error(warnings)
			}
		}
	}
}

// The generation of the configuration changes without a restart, and so does the order of
// configurations in a cluster.
func TestReloadOfGeneration(t *testing.T) {
	s := newStory(t, "--config f", files{"f": "config_generation: 1\n"})
	s.write("f", "config_generation: 2\n")
	if c, err := s.Reload(); err != nil || len(c.Changed) != 1 || c.Changed[0] != "config_generation" || s.Current().Generation != 2 {
		t.Errorf("%+v, %v", c, err)
	}
}
