package main

import (
	"errors"

	"github.com/spf13/cobra"
)

func newDemo() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Show the gate at work, with a simulated fleet in the same process",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("cannot run the demo: it is not part of this build")
		},
	}
}
