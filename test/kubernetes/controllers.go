package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/sluice-router/sluice/test/process"
)

// controllersPort is where the controllers say how they are.
const controllersPort = 10257

// StartControllers starts the controllers that make pods of Deployments and StatefulSets,
// and waits until they run. They end with the cluster.
func (c *Cluster) StartControllers(ctx context.Context) error {
	kubeconfig := filepath.Join(c.Dir, "controllers.kubeconfig")
	if err := c.Server(0).WriteKubeconfig(kubeconfig, "default", adminToken); err != nil {
		return err
	}
	p, err := process.Start(c.Dir, "controllers", []string{"PATH=" + os.Getenv("PATH")}, c.bin.Controllers,
		"--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
		"--controllers=deployment-controller,replicaset-controller,statefulset-controller",
		"--leader-elect=false", "--bind-address="+c.address(0, 1), "--secure-port="+strconv.Itoa(controllersPort),
		"--tls-cert-file="+c.certs.cert, "--tls-private-key-file="+c.certs.key)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.controllers = p
	finished := c.finished
	c.mu.Unlock()
	if finished {
		p.Kill()
		return errors.New("cannot start the controllers: the cluster is closed")
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	health := c.Server(0).Admin()
	health.base = "https://" + c.address(0, 1) + ":" + strconv.Itoa(controllersPort)
	for {
		err := health.do(ctx, http.MethodGet, "/healthz", "", nil, nil)
		if err == nil {
			return nil
		}
		select {
		case <-p.Done():
			return fmt.Errorf("the controllers ended while they started; the end of their log:\n%s", p.LogTail(20))
		case <-ctx.Done():
			return fmt.Errorf("the controllers do not run: %w; the end of their log:\n%s", err, p.LogTail(20))
		case <-time.After(50 * time.Millisecond):
		}
	}
}
