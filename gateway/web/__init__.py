"""What people see: pages, their styles and scripts, and how numbers are written for them."""
