package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Binaries are the programs that a cluster is made of.
type Binaries struct {
	APIServer, Controllers, Etcd string
	// Sluice is the binary that plays the engines. Without it pods that want a process
	// of their own do not start.
	Sluice string
}

// ErrNotInstalled is returned where install.sh has not been run.
var ErrNotInstalled = errors.New("kube-apiserver is not installed: run test/kubernetes/install.sh")

// FindBinaries returns what install.sh, which lies in dir, has installed.
func FindBinaries(dir string) (Binaries, error) {
	script, err := filepath.Abs(filepath.Join(dir, "install.sh"))
	if err != nil {
		return Binaries{}, err
	}
	out, err := exec.Command(script, "--check").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() == 3 {
			return Binaries{}, ErrNotInstalled
		}
		return Binaries{}, fmt.Errorf("cannot tell whether kube-apiserver is installed: %w", err)
	}
	// "kube-apiserver V is installed in DIR, etcd is FILE"
	text := string(bytes.TrimSpace(out))
	_, text, _ = strings.Cut(text, " is installed in ")
	bin, etcd, ok := strings.Cut(text, ", etcd is ")
	if !ok {
		return Binaries{}, fmt.Errorf("cannot read what install.sh --check says: %q", out)
	}
	return Binaries{APIServer: filepath.Join(bin, "kube-apiserver"), Controllers: filepath.Join(bin, "kube-controller-manager"), Etcd: etcd}, nil
}

// buildSluice builds the binary under test, and for the engines, into dir.
func buildSluice(dir string) (string, error) {
	binary := filepath.Join(dir, "sluice")
	cmd := exec.Command("go", "build", "-o", binary, "github.com/sluice-router/sluice/cmd/sluice")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build sluice: %w\n%s", err, out)
	}
	return binary, nil
}
