package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := 0
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	cancel()
	os.Exit(code)
}

// run runs a cluster until ctx ends.
func run(ctx context.Context) error {
	bin, err := FindBinaries(filepath.Join("test", "kubernetes"))
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "sluice-kubernetes-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if bin.Sluice, err = buildSluice(dir); err != nil {
		return err
	}
	c, err := StartCluster(ctx, bin, dir)
	if err != nil {
		return err
	}
	defer c.Close()
	server := c.Server(0)
	node, err := StartNode(ctx, c, server.Admin())
	if err != nil {
		return err
	}
	defer node.Close()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := server.WriteKubeconfig(kubeconfig, "default", adminToken); err != nil {
		return err
	}
	fmt.Printf("The API server is at %s, and the node runs pods whose containers have arguments of \"sluice sim\":\n\n"+
		"  export KUBECONFIG=%s\n\nCtrl-C ends both.\n", server.URL, kubeconfig)
	<-ctx.Done()
	return nil
}
