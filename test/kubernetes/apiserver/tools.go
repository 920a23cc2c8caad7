//go:build tools

// Package tools names the commands that install.sh builds in this module: a real
// kube-apiserver and kube-controller-manager, at the version that go.mod pins.
package tools

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
)
