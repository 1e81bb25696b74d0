"""Whether a node is fit for work, tried before it joins."""
